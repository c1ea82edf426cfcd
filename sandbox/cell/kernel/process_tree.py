"""The processes of a cell, from its first one, and those below any process."""

from __future__ import annotations

import os

_ALL = -1
_LISTS = os.path.exists("/proc/thread-self/children")


def others() -> list[int]:
    """Return every process of the cell but its first one, which calls this."""
    own = os.getpid()
    if own != 1:
        return descendants(own)
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    return [int(name) for name in names if name.isdigit() and name != "1"]


def signal_others(number: int) -> None:
    """Send a signal to all of `others`; in a PID namespace the kernel misses none."""
    for pid in [_ALL] if os.getpid() == 1 else others():
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            # It has ended meanwhile; or there is none.
            continue


def descendants(parent: int) -> list[int]:
    """Return the processes below one, as they are at some moment of the call."""
    found: list[int] = []
    waiting = [parent]
    while waiting:
        below = children(waiting.pop())
        found += below
        waiting += below
    return found


def children(parent: int) -> list[int]:
    """Return the children of a process; none if it is gone."""
    return _listed(parent) if _LISTS else _searched(parent)


def is_below(pid: int, ancestor: int) -> bool:
    """Return True if a process was forked by another one, or by its forks."""
    while pid > 1:
        pid = _parent(pid)
        if pid == ancestor:
            return True
    return False


def stat_of(pid: int | str, thread: str = "") -> list[bytes]:
    """Return the fields of /proc/PID/stat from the third on; none if it is gone.

    Args:
        pid: The process.
        thread: One of its threads; empty for the process.
    """
    path = f"/proc/{pid}/task/{thread}/stat" if thread else f"/proc/{pid}/stat"
    try:
        with open(path, "rb") as file:
            # The name before the last parenthesis may hold anything.
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _parent(pid: int) -> int:
    """Return the parent of a process; 0 if there is none."""
    fields = stat_of(pid)
    return int(fields[1]) if fields else 0


def _listed(parent: int) -> list[int]:
    found: list[int] = []
    try:
        threads = os.listdir("/proc/%d/task" % parent)
    except OSError:
        return found
    for thread in threads:
        try:
            with open("/proc/%d/task/%s/children" % (parent, thread), "rb") as file:
                found += map(int, file.read().split())
        except OSError:
            continue
    return found


def _searched(parent: int) -> list[int]:
    """Look through all processes: some kernels have no lists of children."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if _parent(pid) == parent]
