"""The processes of this machine, while they come and go."""

from __future__ import annotations

import os
from typing import NamedTuple


class Process(NamedTuple):
    """What one look at a process tells."""

    state: str
    parent: int
    started: str


def look(pid: int) -> Process | None:
    """Look at a process once: two looks would not be of the same moment."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            after_name = file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return None
    return Process(after_name[0], int(after_name[1]), after_name[19])


def children(*pids: int) -> dict[int, str]:
    """Return the processes that some have started, each with its start time."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        process = look(pid)
        if process and process.parent in pids:
            found[pid] = process.started
    return found


def below(*pids: int) -> dict[int, str]:
    """Return the children of processes, their children, and so on."""
    found = new = children(*pids)
    while new:
        new = children(*new)
        found = found | new
    return found


def runs(pid: int, started: str) -> bool:
    """Tell whether a process is there still and not only waited for by its parent."""
    process = look(pid)
    return process is not None and process.started == started and process.state != "Z"


def arguments(pid: int) -> bytes:
    """Return the arguments of a process, each with a zero; b"" if it has gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def alive(pid: int) -> bool:
    """Tell whether a process of this number runs."""
    process = look(pid)
    return process is not None and process.state != "Z"


def resident_bytes(pid: int) -> int:
    """Return the memory that a process has now."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
