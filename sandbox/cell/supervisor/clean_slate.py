"""Makes a cell new between two programs: the second finds nothing of the first.

Theory of operation. No process of the first program is left: the kernel makes orphans
children of the first process of their namespace, which is this one, and this one has no
child. What only processes hold went with them: memory, descriptors, locks, timers,
pending signals. What file systems and namespaces hold goes with those: the next program
gets new ones. Process numbers begin anew. A program of the same user can change this
process's nice value, which cannot be undone: such a cell is not used again.
"""

from __future__ import annotations

import os

from ..kernel import linux
from . import scratch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ResidueError(OSError):
    """Something of the last program is left."""


class CleanSlate:
    """Makes a cell new for another program.

    Args:
        settings: The confinement of its programs.
        last_pid: An open descriptor of `/proc/sys/kernel/ns_last_pid`.
    """

    def __init__(self, settings: dict[str, Any], last_pid: int) -> None:
        self._workdir: str = settings["workdir"]
        self._disk_mb: int = settings["disk_mb"]
        self._uid: int = settings["uid"]
        self._last_pid = last_pid
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)

    def renew(self) -> None:
        """Replace all that the last program could change; its processes have ended.

        Raises:
            ResidueError: A process lives on, or this one was changed.
            OSError: A file system is in use, or the kernel makes no new namespace.
        """
        _require_no_child()
        if os.getpriority(os.PRIO_PROCESS, 0) != self._nice:
            raise ResidueError("the supervisor's nice value was changed")
        scratch.unmount(self._workdir)
        scratch.mount(self._workdir, self._disk_mb, self._uid)
        linux.unshare(linux.CLONE_NEWIPC | linux.CLONE_NEWNET)
        linux.bring_up_loopback()
        os.pwrite(self._last_pid, b"1", 0)


def _require_no_child() -> None:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return
    raise ResidueError("a process is left")
