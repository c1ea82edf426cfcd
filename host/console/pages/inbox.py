"""The inbox: calls that wait for a person."""

from __future__ import annotations

from starlette.responses import Response

from ..base.visit import Visit


async def show(visit: Visit) -> Response:
    """Show the requests that wait."""
    return visit.render("inbox.html", waiting=await visit.sources.approvals.pending())
