"""Health: the parts that calls need, cells in use, and the doctor on demand."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from contextlib import suppress
from importlib.metadata import version
from time import time
from typing import NamedTuple

import anyio.to_thread
from starlette.responses import Response

from toolcell.core import ToolcellError
from toolcell.sandbox import SandboxManager

from ..web.visit import Visit


async def show(visit: Visit) -> Response:
    """Show whether a call could be made now, and what the doctor found last."""
    host = visit.sources.host
    sandbox = None if host is None else host.sandbox
    return visit.render(
        "health.html",
        parts_of=await _parts(visit),
        machine=await anyio.to_thread.run_sync(_machine, visit),
        calls=None if host is None else Counter(c.state for c in host.live_calls.all()),
        sandbox=sandbox,
        traits=sandbox.traits if isinstance(sandbox, SandboxManager) else None,
        pool=None if sandbox is None else sandbox.pool_stats(),
        doctor=visit.console.checks.doctor.last,
        now=time(),
    )


class Machine(NamedTuple):
    """The machine that serves this page."""

    version: str
    load: tuple[float, float, float]
    """Programs that run or wait for a CPU: over 1, 5 and 15 minutes."""

    cpus: int
    disk: tuple[int, int] | None
    """Free and all bytes of the disk with the state. None: there is no such folder."""


def _machine(visit: Visit) -> Machine:
    folder, disk = visit.sources.config.state.folder, None
    with suppress(OSError):
        if folder is not None:
            usage = shutil.disk_usage(folder)
            disk = usage.free, usage.total
    return Machine(version("toolcell"), os.getloadavg(), os.cpu_count() or 1, disk)


async def examine(visit: Visit) -> Response:
    """Let the doctor examine this machine; it starts a few cells."""
    await visit.console.checks.doctor.examine()
    return visit.go("/health#doctor")


async def _parts(visit: Visit) -> list[tuple[str, str]]:
    """Return each part that calls need, with its problem; empty: it answers."""
    sources = visit.sources
    checks = [("store", sources.guard.check), ("approvals", sources.approvals.check)]
    if sources.host is not None and sources.host.sandbox is not None:
        checks.append(("sandbox", sources.host.sandbox.check))
    found = []
    for name, check in checks:
        problem = ""
        try:
            await check()
        except ToolcellError as error:
            problem = str(error)
        found.append((name, problem))
    return found
