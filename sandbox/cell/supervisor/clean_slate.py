"""Makes a cell new between two programs: the second finds nothing of the first.

Theory of operation. No process of the first program is left: the kernel makes orphans
children of the first process of their namespace, which is this one, and this one has no
child but the zygote. What only processes hold went with them: memory, descriptors,
locks, timers, pending signals. What file systems hold goes with those: the next program
gets new ones, and new namespaces from the zygote. Only a network namespace whose
counters have not moved is kept, for its making takes longer than all the rest. Process
numbers begin anew. A program of the same user can change this process's nice value,
which cannot be undone: such a cell is not used again.

In a container this process may make neither. There it empties each folder that programs
can write to, and checks that the folder and its file system are as they were at first.
What would stay in a namespace is closed to programs, unless no other program follows.
The same goes for `confined` cells, to which it is always closed; they share /dev/shm
with the machine, so a cell whose program left something there is not used again.
"""

from __future__ import annotations

import contextlib
import os

from ..kernel import seccomp
from ..wire.contract import FOLDERS
from ..workdir import scratch
from ..workdir.emptying import Folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


_SHARED = "/dev/shm"


class ResidueError(OSError):
    """Something of the last program is left."""


class CleanSlate:
    """Makes a cell new for another program.

    Args:
        settings: The confinement of its programs.
        last_pid: An open descriptor of `/proc/sys/kernel/ns_last_pid`; None if this
            process may make no namespaces.
    """

    def __init__(self, settings: dict[str, Any], last_pid: int | None) -> None:
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._replace: Callable[[float], None]
        if settings["confined"]:
            self._replace = _OwnFolders(settings).empty
        elif settings["renews"] == FOLDERS:
            self._replace = Folders(settings["folders"], settings["uid"]).empty
            # Forks share them.
            for lasting in (False, True):
                seccomp.prepared_closing(lasting)
        else:
            assert last_pid is not None
            self._replace = _Mounts(settings, last_pid).replace

    def renew(self, until: float) -> None:
        """Replace all that the last program could change; its processes have ended.

        Args:
            until: When it is too late, by `time.monotonic`.

        Raises:
            ResidueError: This process was changed.
            OSError: A file system is in use or not empty.
        """
        if os.getpriority(os.PRIO_PROCESS, 0) != self._nice:
            raise ResidueError("the supervisor's nice value was changed")
        self._replace(until)


class _OwnFolders:
    """The folders of a cell on the machine's file systems.

    Args:
        settings: As in `CleanSlate`.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._uid: int = settings["uid"]
        folders = [settings["workdir"], settings["tmp"]]
        self._folders = Folders(folders, self._uid, alone=False)
        self._shared = self._in_shared_memory()

    def empty(self, until: float) -> None:
        """Empty them. Raises OSError."""
        self._folders.empty(until)
        if self._in_shared_memory() - self._shared:
            raise ResidueError("something is left in shared memory")

    def _in_shared_memory(self) -> set[str]:
        found: set[str] = set()
        with contextlib.suppress(FileNotFoundError), os.scandir(_SHARED) as entries:
            for entry in entries:
                # Others of the same user may remove theirs meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_uid == self._uid:
                        found.add(entry.name)
        return found


class _Mounts:
    """File systems and process numbers of a cell.

    Args:
        settings: As in `CleanSlate`.
        last_pid: The descriptor.
    """

    def __init__(self, settings: dict[str, Any], last_pid: int) -> None:
        self._workdir: str = settings["workdir"]
        self._disk_mib: int = settings["disk_mib"]
        self._uid: int = settings["uid"]
        self._last_pid = last_pid

    def replace(self, until: float) -> None:
        """Give the cell new ones. Raises OSError."""
        scratch.unmount(self._workdir)
        scratch.mount(self._workdir, self._disk_mib, self._uid)
        os.pwrite(self._last_pid, b"1", 0)
