"""Processes that no signal ends, until they are thawed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..conftest import missing

FREEZER = Path("/sys/fs/cgroup/freezer")


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """Freeze processes as cgroup version 1 does: SIGKILL waits until they thaw."""
    group = FREEZER / f"toolcell-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "freezer.state").write_text("THAWED")
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        missing(f"there is no freezer of cgroup version 1: {error}")
    try:
        _join(group, pids)
        (group / "freezer.state").write_text("FROZEN")
        yield
    finally:
        (group / "freezer.state").write_text("THAWED")
        # What was killed dies now, and leaves.
        while group.exists():
            _join(FREEZER, map(int, (group / "cgroup.procs").read_text().split()))
            with suppress(OSError):
                group.rmdir()


def _join(group: Path, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(str(pid))
