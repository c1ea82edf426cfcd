"""Walls of cells made of namespaces.

Theory of operation. The launcher builds, once, a private read-only root with all that
an interpreter needs, and moves into it. It clones each cell into new user, pid, net,
ipc and uts namespaces and maps its uids. The child makes its cgroup the root of its
cgroup namespace, and mounts its own /proc and scratch space. Where the kernel has
Landlock its processes may reach the paths of its root alone, which is a second wall.
When the first process is killed the kernel kills the whole PID namespace.
"""

from __future__ import annotations

import os

from ..kernel import gvisor, landlock, linux, seccomp
from ..kernel.shares import Shares
from ..wire import trust
from ..wire.contract import SHARED_FOLDERS
from . import reach, root_filesystem
from .refused import making_namespaces, refusal
from .users import CellUsers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAMESPACES = (
    linux.CLONE_NEWUSER
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWNET
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUTS
)
# A cell could be shown this one; then it would see the processes of others.
_MASKED = "this one is masked (docker run --security-opt systempaths=unconfined)"


class NamespaceWalls:
    """Puts cells into their own namespaces.

    Args:
        setup: The uid of programs, the paths to show, the mounts, the work dir and the
            text of /etc/hosts.

    Raises:
        WallsRefusedError: The kernel gives none; nothing was changed.
        MountError: A path of the host cannot be mounted.
        OSError: This machine cannot make such cells.
    """

    level = "namespaces"
    confined = ""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._cell_uid: int = setup["cell_uid"]
        if _is_masked("/proc"):
            _require_own_proc()
        self._users = CellUsers(self._cell_uid)
        self._shares = Shares(self._users.separate)
        self.has_network = not gvisor.is_this_kernel() or gvisor.has_loopback()
        """False if cells have no network at all, not even a loopback interface."""

        self._first_uid = 0
        root_filesystem.build(
            setup["show"],
            setup["hide"],
            setup["mounts"],
            setup["workdir"],
            self._cell_uid,
            setup["hosts"],
            trust.bundle(setup["authority"]),
        )
        self._masks = root_filesystem.masks()
        self._paths = reach.of_namespaces(setup) if _has_landlock() else []
        # Each cell mounts its own.
        own = ("/proc", setup["workdir"], *SHARED_FOLDERS)
        self._reach = landlock.Reach(self._paths, own) if self._paths else None

    def clone(self) -> int:
        """Fork a cell; return its first process, and 0 in that. Raises OSError."""
        self._first_uid = self._users.next_uid()
        with making_namespaces():
            return self._shares.clone(_NAMESPACES, self._first_uid)

    def admit(self, pid: int) -> None:
        """Do what a new cell cannot do for itself. Raises OSError."""
        self._users.map_ids(pid, self._first_uid)

    def enter(self) -> None:
        """Begin the walls, in the first process. Raises OSError."""
        if self._users.separate:
            os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
        # A process that changed its user cannot open its own files in /proc.
        linux.prctl(linux.PR_SET_DUMPABLE, 1)
        self._shares.limit()

    def finish(self, kind: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
        """Finish the walls; return the supervisor's settings, and its descriptors.

        Raises:
            OSError: The kernel refused.
        """
        # Only now: its root is the cgroup that this process is in at the time. And
        # gVisor gives mounts that came with a clone to the user namespace outside.
        with making_namespaces():
            linux.unshare(linux.CLONE_NEWCGROUP | linux.CLONE_NEWNS)
        linux.set_hostname("cell")
        settings = kind["settings"]
        renews = bool(settings["renews"])
        descriptors = root_filesystem.finish(
            self._masks, kind["limits"]["disk_mib"], self._cell_uid, renews=renews
        )
        if gvisor.is_this_kernel():
            # Its loopback interfaces are up, and its processes open to their user.
            root_filesystem.hide_first_process()
            seccomp.make_up_for_gvisor()
        else:
            linux.bring_up_loopback(descriptors["network"])
        if self._reach is not None:
            settings = {**settings, "require": [*settings["require"], "landlock"]}
            if renews:
                # Behind rules the first process could mount nothing anew: each program
                # makes its own.
                settings["reach"] = self._paths
            else:
                rules = self._reach.rules(scoped=True)
                descriptors["rules"] = rules.fd
        return settings, descriptors

    def clear(self, pid: int) -> None:
        """Remove what is left of a cell whose first process has ended: nothing is."""

    def close(self) -> None:
        """Remove what is left when all cells have ended: nothing is."""


def _has_landlock() -> bool:
    """Return True if the kernel has Landlock with which all programs run."""
    try:
        return landlock.version() >= landlock.REFER_SINCE
    except OSError:
        return False


def _is_masked(folder: str) -> bool:
    """Return True if something is mounted over a part of a file system."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        points = [line.split()[4] for line in file]
    return any(point.startswith(folder + "/") for point in points)


def _require_own_proc() -> None:
    """Raise WallsRefusedError if a cell cannot mount its own /proc.

    The kernel refuses it where this one is masked, as engines have it in containers; a
    mount over an empty folder masks nothing.
    """
    with making_namespaces():
        pid = linux.clone(linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.CLONE_NEWPID)
    if pid == 0:
        number = 255
        try:
            linux.mount("proc", "/proc", "proc")
            number = 0
        except OSError as error:
            number = error.errno or number
        finally:
            os._exit(number)
    number = os.WEXITSTATUS(os.waitpid(pid, 0)[1])
    if number:
        why = f"mount /proc: {os.strerror(number)}; {_MASKED}"
        raise refusal(OSError(number, why))
