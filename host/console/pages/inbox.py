"""The inbox: calls that wait for a person, and standing grants."""

from __future__ import annotations

from time import time

from starlette.responses import Response

from toolcell.guard import ApprovalRequest
from toolcell.guard.spi import StandingGrant

from ..web.visit import ActionRefusedError, Visit
from .shown import RequestPage, show_request

MAX_LISTED = 50
"""Requests on the page. When it is reached the newer ones are counted alone."""

LATEST = 10
"""Answered requests below those that wait."""


async def show(visit: Visit) -> Response:
    """Show the requests that wait, the oldest first, the grants, and late answers."""
    approvals, now = visit.sources.approvals, time()
    pending = await approvals.pending()
    waiting = [request for request in pending if request.is_waited_for(now)]
    given_up = [request for request in pending if not request.is_waited_for(now)]
    recent = await approvals.recent(limit=LATEST + len(pending))
    answered = [each for each in recent if each.state(now) != "waiting"][:LATEST]
    return visit.render(
        "inbox.html",
        waiting=len(waiting),
        shown=await _pages(visit, waiting),
        given_up=await _pages(visit, given_up[::-1]),
        grants=await approvals.grants(),
        answered=answered,
        marks=visit.console.vouching.marks(),
        now=now,
    )


async def _pages(visit: Visit, requests: list[ApprovalRequest]) -> list[RequestPage]:
    return [
        await show_request(visit.sources, request) for request in requests[:MAX_LISTED]
    ]


async def count(visit: Visit) -> Response:
    """Show the number of calls that wait, which open pages ask for."""
    return visit.render("count.html")


async def revoke(visit: Visit) -> Response:
    """End a standing grant."""
    approvals = visit.sources.approvals
    grant = _find(await approvals.grants(), visit.part("id"))
    if not visit.person.may_answer(grant.agent_id):
        raise ActionRefusedError(403, f"you do not answer for {grant.agent_id}")
    await approvals.revoke(grant.id, by=visit.person.id)
    return visit.go("/#grants")


def _find(grants: list[StandingGrant], grant_id: str) -> StandingGrant:
    for grant in grants:
        if grant.id == grant_id:
            return grant
    raise ActionRefusedError(
        404, "there is no such grant", hint="it has ended, or somebody revoked it"
    )
