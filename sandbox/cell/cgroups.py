"""One cgroup per cell, in version 1 hierarchies or in version 2."""

from __future__ import annotations

import os

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
    """The directories of one cell's cgroup and its open counters."""

    def __init__(self, parents: dict[str, int], name: str, values: dict[str, Any]):
        self._parents = parents
        self._name = name
        self._joined: list[int] = []
        self.files: dict[str, int] = {}
        for controller, parent in parents.items():
            os.mkdir(name, dir_fd=parent)
            for file, pattern in _LIMIT_FILES[controller]:
                text = pattern.format(**values)
                _write(f"{name}/{file}", text, parent, file in _OPTIONAL_FILES)
            for account, file in _ACCOUNT_FILES.get(controller, {}).items():
                self.files[account] = os.open(
                    f"{name}/{file}", os.O_RDONLY, dir_fd=parent
                )

    def add(self, pid: int) -> None:
        """Put a process into the group. Raises OSError."""
        for parent in self._parents.values():
            _write(f"{self._name}/cgroup.procs", str(pid), parent)

    def close(self) -> None:
        """Close the counters; the cell has its own copies."""
        for fd in self.files.values():
            os.close(fd)
        self.files = {}

    def remove(self) -> None:
        """Remove the group; every process in it is gone."""
        self.close()
        for parent in self._parents.values():
            try:
                os.rmdir(self._name, dir_fd=parent)
            except FileNotFoundError:
                continue


class GroupMaker:
    """Makes cgroups below given parents."""

    def __init__(self, parents: dict[str, str]) -> None:
        self._paths = parents
        # Descriptors, because the launcher is about to leave this root.
        self._parents = {
            name: os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            for name, path in parents.items()
        }
        self._count = 0

    def make(self, limits: dict[str, Any]) -> CellGroup:
        """Return a new group that holds these limits. Raises OSError."""
        values = {
            "memory_bytes": limits["memory_mb"] * 1024 * 1024,
            "pids": limits["pids"],
            "cpu_quota": int(limits["cpus"] * 100_000),
        }
        self._count += 1
        return CellGroup(self._parents, f"cell-{self._count}", values)


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
