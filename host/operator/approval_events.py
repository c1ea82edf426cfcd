"""The events of requests for approval: that they wait, were voted on, or ended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import anyio

from toolcell.core import InvalidInputError, StoreUnavailableError
from toolcell.guard import ApprovalRequest, Approvals

from .events import (
    ApprovalAsked,
    ApprovalEnded,
    ApprovalVoted,
    Event,
    StoreAvailable,
    StoreUnavailable,
)

LOOK_SECONDS = 1.0
"""Seconds between two looks at the requests that wait: they are answered anywhere."""

_log = logging.getLogger("toolcell.host")


async def watch_approvals(
    approvals: Approvals,
    report: Callable[[Event], None],
    *,
    look_seconds: float = LOOK_SECONDS,
) -> None:
    """Report requests that come and go, and the state of their store.

    Args:
        approvals: The approvals; they are read until the task is cancelled.
        report: Receives the events.
        look_seconds: Seconds between two looks.
    """
    known: dict[str, ApprovalRequest] = {}
    away = False
    while True:
        try:
            now = {each.id: each for each in await approvals.pending()}
            for each in known.keys() - now.keys():
                report(await _ended(approvals, known[each]))
            for each in now.keys() - known.keys():
                report(ApprovalAsked(**_facts(now[each])))
            for each in now.keys() & known.keys():
                if now[each].approved_by != known[each].approved_by:
                    report(ApprovalVoted(**_facts(now[each])))
            known = now
            if away:
                away = False
                report(StoreAvailable(agent=None, store="approvals"))
        except StoreUnavailableError as error:
            if not away:
                away = True
                _log.warning("requests for approval cannot be read: %s", error)
                report(StoreUnavailable(agent=None, store="approvals"))
        await anyio.sleep(look_seconds)


async def _ended(approvals: Approvals, request: ApprovalRequest) -> Event:
    try:
        outcome = await approvals.answered(request.id)
    except InvalidInputError:
        outcome = None
    status = "expired"
    if outcome is not None and outcome.status != "unanswered":
        status = outcome.status
    return ApprovalEnded(**_facts(request), status=status)


def _facts(request: ApprovalRequest) -> dict[str, Any]:
    call = request.call
    return {"agent": call.agent_id, "id": request.id, "tool": call.name}
