"""Health: the parts that calls need, cells in use, and the doctor on demand."""

from __future__ import annotations

from time import time

from starlette.responses import Response

from toolcell.core import ToolcellError

from ..web.visit import Visit


async def show(visit: Visit) -> Response:
    """Show whether a call could be made now, and what the doctor found last."""
    host = visit.sources.host
    sandbox = None if host is None else host.sandbox
    return visit.render(
        "health.html",
        parts_of=await _parts(visit),
        sandbox=sandbox,
        pool=None if sandbox is None else sandbox.pool_stats(),
        doctor=visit.console.checks.doctor.last,
        now=time(),
    )


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
