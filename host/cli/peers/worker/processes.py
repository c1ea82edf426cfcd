"""Processes of this machine: which there are, and their memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .kind import AbsentError

_PARENT, _BEGAN = 0, 18
"""Places of the parent and of the time of the start in what `_stat` returns."""


def tree(roots: Sequence[int]) -> list[int]:
    """Return processes, their children, and so on."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        if fields := _stat(int(path.name)):
            children.setdefault(fields[_PARENT], []).append(int(path.name))
    found = list(roots)
    for pid in found:
        found += children.get(pid, [])
    return found


def _stat(pid: int) -> list[int]:
    """Return the numbers of `/proc/PID/stat` after the state; empty: it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(each) for each in text.rpartition(")")[2].split()[1:]]


def pss_mib(pid: int) -> float:
    """Return a process's share of the memory that it uses."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except PermissionError:
        raise AbsentError("only root may read the memory of sandboxes") from None
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line[:4] == "Pss:") / 1_024


def shims() -> list[int]:
    """Return the engine's process above each container, if that is younger than us."""
    ids = output("docker", "ps", "--quiet").split()
    if not ids:
        return []
    pids = output("docker", "inspect", "--format", "{{.State.Pid}}", *ids).split()
    mine = _stat(os.getpid())[_BEGAN]
    found = [fields for pid in pids if (fields := _stat(int(pid)))]
    return [fields[_PARENT] for fields in found if fields[_BEGAN] >= mine]


def output(*arguments: str) -> str:
    """Return what a command prints.

    Raises:
        CalledProcessError: It failed.
    """
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    return done.stdout
