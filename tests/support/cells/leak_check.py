"""What a process and all below it hold: what a leak would make grow."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from toolcell.sandbox.machine import process_identity

from ..process_tree import below
from .leftovers import containers_of, folders_of, groups_of

_LOOKS_ALIKE = 20


class Held(NamedTuple):
    """Counts of one moment."""

    processes: int
    descriptors: int
    containers: int
    cgroups: int
    folders: int


def owner_of(pid: int) -> str:
    """Return the name that a process's containers, cgroups and folders bear."""
    return f"{pid}-{process_identity.start_time(pid)}"


def held(pid: int, engine: Any = None) -> Held:
    """Count now; containers only where there is an engine."""
    name, processes = owner_of(pid), below(pid)
    descriptors = 0
    for process in (pid, *processes):
        with suppress(OSError):
            descriptors += len(os.listdir(f"/proc/{process}/fd"))
    groups = [found for path in groups_of(name) for found in os.walk(path)]
    return Held(
        processes=len(processes),
        descriptors=descriptors,
        containers=len(containers_of(engine, name)) if engine else 0,
        cgroups=len(groups),
        folders=len(folders_of(name)),
    )


async def at_rest(pid: int, engine: Any = None, *, seconds: float = 60) -> Held:
    """Return what is held when nothing changes any more."""
    seen, looks = held(pid, engine), 1
    with anyio.fail_after(seconds):
        while looks < _LOOKS_ALIKE:
            await anyio.sleep(0.1)
            now = held(pid, engine)
            seen, looks = (seen, looks + 1) if now == seen else (now, 1)
    return seen


def resident_mib(pid: int) -> float:
    """Return the memory of a process alone, in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1048576
