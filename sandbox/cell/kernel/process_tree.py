"""The processes below a process."""

from __future__ import annotations

import os

_LISTS = os.path.exists("/proc/thread-self/children")


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
    found = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{int(name)}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) == parent:
                    found.append(int(name))
        except (OSError, ValueError):
            continue
    return found
