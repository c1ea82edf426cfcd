"""Parent cgroups for cells on this host, and removal of those of dead processes."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..cell.kernel import gvisor
from . import process_identity

PREFIX = "toolcell-"
_LEAF = f"{PREFIX}host"
_MOVES = 10
_V1_CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")
_V2_CONTROLLERS = ("memory", "pids", "cpu")
_numbers = itertools.count()
EMPTY_SECONDS = 5.0
"""Seconds to wait until killed processes have freed their memory and left the group."""

_SHORT_SECONDS, _LONG_SECONDS = 0.001, 0.05


def name_of(process: str) -> str:
    """Return the prefix of the groups of a process of this PID namespace."""
    return f"{PREFIX}{process_identity.pid_namespace()}-{process}"


def own_name() -> str:
    """Return the prefix of this process's groups; it is not reused with the pid."""
    return name_of(process_identity.this_process())


def parents() -> dict[str, str]:
    """Return the directory below which this process may make groups, by controller.

    Raises:
        OSError: There is none; the message says why.
    """
    if gvisor.is_this_kernel():
        raise OSError("cgroups of gVisor take a limit of memory, and do not hold it")
    mounts, own = _mounts(), _own_paths()
    if all(name in mounts for name in _V1_CONTROLLERS):
        found = {
            name: f"{mounts[name]}{own.get(name, '/').rstrip('/')}"
            for name in _V1_CONTROLLERS
        }
        # Controllers mounted together are one directory, listed once.
        return {name: path for name, path in found.items() if path}
    if "unified" in mounts:
        return {"unified": _delegated(f"{mounts['unified']}{own.get('unified', '')}")}
    raise OSError("no cgroup file system with memory, pids and cpu is mounted")


def _mounts() -> dict[str, str]:
    """Return cgroup mount points by controller ("unified" for version 2)."""
    result: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            kind, _, options = after.split(" ", 2)
            point = before.split()[4]
            if kind == "cgroup2":
                result.setdefault("unified", point)
            elif kind == "cgroup":
                for name in options.split(","):
                    result.setdefault(name, point)
    return result


def _own_paths() -> dict[str, str]:
    result = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(",") if controllers else ["unified"]:
            result[name] = path
    return result


def _delegated(own: str) -> str:
    """Return a group whose children can have limits (cgroup version 2).

    A group with members cannot have such children, so its members are moved to a leaf.
    That is allowed only where this subtree was delegated to this user.
    """
    # This process is in the leaf already if it or its parent made cells before.
    path = Path(own).parent if Path(own).name == _LEAF else Path(own)
    available = (path / "cgroup.controllers").read_text().split()
    missing = [name for name in _V2_CONTROLLERS if name not in available]
    if missing:
        raise OSError(f"{path} has no controller {', '.join(missing)}")
    wanted = " ".join(f"+{name}" for name in _V2_CONTROLLERS)
    control = path / "cgroup.subtree_control"
    try:
        control.write_text(wanted)
    except OSError:
        _move_members_to_leaf(path)
        control.write_text(wanted)
    return str(path)


def _move_members_to_leaf(path: Path) -> None:
    leaf = path / _LEAF
    leaf.mkdir(exist_ok=True)
    # Members may fork meanwhile.
    for _ in range(_MOVES):
        members = (path / "cgroup.procs").read_text().split()
        if not members:
            return
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                (leaf / "cgroup.procs").write_text(pid)


def create() -> dict[str, str]:
    """Make this process's own parent groups and return them by controller.

    Raises:
        OSError: They cannot be made here; the message says why.
    """
    made: dict[str, str] = {}
    # A new name each time: a group that could not be removed may still be there.
    name = f"{own_name()}-{next(_numbers)}"
    try:
        for controller, parent in parents().items():
            os.mkdir(f"{parent}/{name}")
            made[controller] = f"{parent}/{name}"
        if "unified" in made:
            control = Path(made["unified"], "cgroup.subtree_control")
            control.write_text(" ".join(f"+{name}" for name in _V2_CONTROLLERS))
    except OSError:
        remove(made)
        raise
    return made


def remove(paths: dict[str, str]) -> list[str]:
    """Kill the members of groups and remove the groups; missing ones are fine.

    Blocks until the killed processes have left, for at most five seconds in all.

    Returns:
        The groups that could not be removed.
    """
    return _remove_all(paths.values(), EMPTY_SECONDS)


def _remove_all(groups: Iterable[str], seconds: float) -> list[str]:
    """Kill and remove until `seconds` are over, at least once; return the rest."""
    end, rest = time.monotonic() + seconds, _SHORT_SECONDS
    while True:
        groups = [path for path in groups if not _removed(path)]
        if not groups or time.monotonic() >= end:
            return groups
        time.sleep(rest)
        rest = min(2 * rest, _LONG_SECONDS)


def _removed(group: str) -> bool:
    """Kill the members of a group and of those below; True if it is gone."""
    for path, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            for pid in Path(path, "cgroup.procs").read_text().split():
                # Processes that this PID namespace does not show have the number 0.
                if int(pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
            os.rmdir(path)
    return not os.path.exists(group)


def sweep() -> list[str]:
    """Kill and remove, once, the groups of dead owners beside those of this process.

    Returns:
        The removed groups. Those whose processes have not left yet stay.
    """
    try:
        places = set(parents().values())
    except OSError:
        return []
    found = [path for place in places for path in _orphans_in(place)]
    left = _remove_all(found, 0)
    return [path for path in found if path not in left]


def sweep_everywhere() -> tuple[list[str], list[str]]:
    """Remove the groups of dead owners wherever this user may.

    A host that was started in another unit or login made its groups there. Blocks
    for at most five seconds.

    Returns:
        The removed groups, and those that could not be removed.
    """
    mounts = _mounts()
    roots = {mounts[name] for name in (*_V1_CONTROLLERS, "unified") if name in mounts}
    found = [
        orphan
        for root in roots
        for place, _, _ in os.walk(root)
        if os.access(place, os.W_OK)
        for orphan in _orphans_in(place)
    ]
    left = _remove_all(found, EMPTY_SECONDS)
    return [path for path in found if path not in left], left


def _orphans_in(place: str) -> Iterator[str]:
    mark = name_of("")
    with contextlib.suppress(OSError):
        for name in os.listdir(place):
            process = name.removeprefix(mark).rpartition("-")[0]
            if name.startswith(mark) and not process_identity.lives(process):
                yield f"{place}/{name}"
