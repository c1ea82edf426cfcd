"""One cgroup per cell, in version 1 hierarchies or in version 2."""

from __future__ import annotations

import os

from ..kernel.cgroup_files import oom_kills_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# controller -> (file, how its value is made from the request)
_LIMIT_FILES: dict[str, list[tuple[str, str]]] = {
    "memory": [
        ("memory.limit_in_bytes", "{memory_bytes}"),
        ("memory.memsw.limit_in_bytes", "{memory_bytes}"),
        # Version 2 counts what waits in TCP sockets by itself.
        ("memory.kmem.tcp.limit_in_bytes", "{memory_bytes}"),
    ],
    "pids": [("pids.max", "{pids}")],
    "cpu": [("cpu.cfs_quota_us", "{cpu_quota}")],
    "cpuacct": [],
    "unified": [
        ("memory.max", "{memory_bytes}"),
        ("memory.swap.max", "0"),
        ("pids.max", "{pids}"),
        ("cpu.max", "{cpu_quota} 100000"),
    ],
}
# A kernel without such accounting has no such file.
_OPTIONAL_FILES = (
    "memory.memsw.limit_in_bytes",
    "memory.kmem.tcp.limit_in_bytes",
    "memory.swap.max",
)
_ACCOUNT_FILES = {
    "memory": {"oom": "memory.oom_control"},
    "cpuacct": {"cpu": "cpuacct.usage"},
    "unified": {"oom": "memory.events", "cpu": "cpu.stat"},
}


class CellGroup:
    """The cgroup of one cell: a directory in each hierarchy, and its open counters.

    Args:
        parents: Open directories of the parent groups, by controller.
        name: The name of the group.
        values: The limits, as `_LIMIT_FILES` names them.

    Raises:
        OSError: The kernel refused a directory or a limit; nothing is left behind.
    """

    def __init__(self, parents: dict[str, int], name: str, values: dict[str, Any]):
        self._parents = parents
        self._name = name
        self._joined: list[int] = []
        self.files: dict[str, int] = {}
        try:
            for controller, parent in parents.items():
                self._make(controller, parent, values)
        except OSError:
            self.remove()
            raise

    def _make(self, controller: str, parent: int, values: dict[str, Any]) -> None:
        name = self._name
        os.mkdir(name, dir_fd=parent)
        for file, pattern in _LIMIT_FILES[controller]:
            text = pattern.format(**values)
            _write(f"{name}/{file}", text, parent, file in _OPTIONAL_FILES)
        for account, file in _ACCOUNT_FILES.get(controller, {}).items():
            self.files[account] = os.open(f"{name}/{file}", os.O_RDONLY, dir_fd=parent)

    def add(self, pid: int) -> None:
        """Put a process into the group. Raises OSError."""
        for parent in self._parents.values():
            _write(f"{self._name}/cgroup.procs", str(pid), parent)

    def close(self) -> None:
        """Close the counters; the cell has its own copies."""
        for fd in self.files.values():
            os.close(fd)
        self.files = {}

    def oom_kills(self) -> int:
        """Return the number of its processes that the kernel killed for memory."""
        for controller, parent in self._parents.items():
            file = _ACCOUNT_FILES.get(controller, {}).get("oom")
            if file is not None:
                return oom_kills_in(_read(f"{self._name}/{file}", parent))
        return 0

    def remove(self) -> bool:
        """Remove the group, whose processes have ended; True if it is gone."""
        self.close()
        gone = True
        for parent in self._parents.values():
            gone = _rmdir(self._name, parent) and gone
        return gone


class GroupMaker:
    """Makes and removes cgroups below given parents.

    Args:
        parents: Paths of the parent groups, by controller.
    """

    def __init__(self, parents: dict[str, str]) -> None:
        self._paths = parents
        # Descriptors, because the launcher is about to change its root.
        self._parents = {
            name: os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            for name, path in parents.items()
        }
        self._above = [
            (
                os.path.basename(path),
                os.open(f"{path}/..", os.O_RDONLY | os.O_DIRECTORY),
            )
            for path in parents.values()
        ]
        self._left: list[CellGroup] = []
        self._count = 0

    def make(self, limits: dict[str, Any]) -> CellGroup:
        """Return a new group that enforces these limits. Raises OSError."""
        values = {
            "memory_bytes": limits["memory_mib"] * 1024 * 1024,
            "pids": limits["pids"],
            "cpu_quota": int(limits["cpus"] * 100_000),
        }
        self._count += 1
        return CellGroup(self._parents, f"cell-{self._count}", values)

    def remove(self, group: CellGroup) -> None:
        """Remove a group, and earlier ones that could not be removed yet."""
        self._left = [each for each in (*self._left, group) if not each.remove()]

    def remove_parents(self) -> None:
        """Remove the parent groups, for a host that was killed before it could."""
        self._left = [each for each in self._left if not each.remove()]
        for name, above in self._above:
            _rmdir(name, above)


def _read(path: str, dir_fd: int) -> str:
    try:
        fd = os.open(path, os.O_RDONLY, dir_fd=dir_fd)
    except FileNotFoundError:
        return ""
    try:
        return os.read(fd, 4096).decode()
    finally:
        os.close(fd)


def _rmdir(name: str, dir_fd: int) -> bool:
    try:
        os.rmdir(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _write(path: str, text: str, dir_fd: int, optional: bool = False) -> None:
    try:
        fd = os.open(path, os.O_WRONLY, dir_fd=dir_fd)
    except FileNotFoundError:
        if optional:
            return
        raise
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
