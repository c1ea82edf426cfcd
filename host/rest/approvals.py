"""Requests for approval as clients see them, and the events of their ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import anyio

from toolcell.core import InvalidInputError, StoreUnavailableError
from toolcell.core.text.canonical_json import canonical_digest
from toolcell.core.text.counted import counted
from toolcell.core.text.printable import escaped_json
from toolcell.guard import ApprovalRequest, Approvals, Redactor

from ..http.tokens import Token
from ..operator.events import (
    ApprovalAsked,
    ApprovalEnded,
    ApprovalVoted,
    Event,
    StoreAvailable,
    StoreUnavailable,
)
from . import bodies
from .errors import RefusedError

LOOK_SECONDS = 1.0
"""Seconds between two looks at the requests that wait: they are answered anywhere."""

_log = logging.getLogger("toolcell.host")


def shown(request: ApprovalRequest, redactor: Redactor) -> bodies.Approval:
    """Return a request as it is shown: no likely secret, and no hidden letter."""
    view = request.view(redactor)
    facts: dict[str, Any] = {
        "id": request.id,
        "tool": request.call.name,
        "version": request.version,
        "run_id": request.run_id,
        "arguments": view.shown,
        "preview": redactor(request.preview),
        "hidden": [
            {"path": each.path, "characters": each.characters} for each in view.hidden
        ],
        "shell_like": request.shell_like,
        "rule": request.rule,
        "approvers": request.approvers,
        "asked_at": request.asked_at,
        "expires_at": request.expires_at,
    }
    facts = escaped_json(facts)
    members = {"approved_by": request.approved_by, "digest": canonical_digest(facts)}
    return bodies.Approval.model_validate({**facts, **members})


async def waiting(approvals: Approvals, agent_id: str) -> list[ApprovalRequest]:
    """Return the requests of an agent that wait, the oldest first."""
    found = await approvals.pending()
    return [each for each in found if each.call.agent_id == agent_id]


async def find(approvals: Approvals, agent_id: str, request_id: str) -> ApprovalRequest:
    """Return a request of an agent that waits.

    Raises:
        RefusedError: 404: it has none with this id.
    """
    for each in await waiting(approvals, agent_id):
        if each.id == request_id:
            return each
    raise RefusedError(
        404,
        "not_found",
        "no request with this id waits",
        hint="it was answered, or has expired",
    )


def approver(token: Token) -> str:
    """Return the name under which the person at a client answers.

    Raises:
        RefusedError: 403: the token is of an agent without a person.
    """
    if not token.asks_person:
        raise RefusedError(
            403,
            "no_person",
            "this token does not let a person answer",
            hint="`toolcell tokens create --asks-person` makes one that does",
        )
    return f"token {token.id}"


def check_seen(
    request: ApprovalRequest, redactor: Redactor, given: bodies.Approve
) -> None:
    """Check that the request is approved as it was shown.

    Raises:
        RefusedError: 409: it was shown otherwise, or not whole. 403: it takes several
            people, of whom the one at the agent's client is none.
    """
    if request.approvers > 1:
        raise RefusedError(
            403,
            "several_people",
            f"{request.approvers} people have to approve this call",
            hint="they do so in the console or with `toolcell approvals`",
        )
    seen = shown(request, redactor)
    if given.digest != seen.digest:
        raise RefusedError(
            409,
            "not_as_shown",
            "the digest is not that of the request",
            hint="read the request again, and approve what it shows",
        )
    if seen.hidden and given.arguments is None:
        raise RefusedError(
            409,
            "hidden_parts",
            f"the request has {counted(len(seen.hidden), 'hidden part')}",
            hint=f"`toolcell approvals show {request.id} --reveal` shows them",
        )


async def watch(
    approvals: Approvals,
    tell: Callable[[Event], None],
    *,
    look_seconds: float = LOOK_SECONDS,
) -> None:
    """Tell of requests that come and go, and of their store, until cancelled.

    Args:
        approvals: The approvals.
        tell: Is told of them.
        look_seconds: Seconds between two looks.
    """
    known: dict[str, ApprovalRequest] = {}
    away = False
    while True:
        try:
            now = {each.id: each for each in await approvals.pending()}
            for each in known.keys() - now.keys():
                tell(await _ended(approvals, known[each]))
            for each in now.keys() - known.keys():
                tell(ApprovalAsked(**_facts(now[each])))
            for each in now.keys() & known.keys():
                if now[each].approved_by != known[each].approved_by:
                    tell(ApprovalVoted(**_facts(now[each])))
            known = now
            if away:
                away = False
                tell(StoreAvailable(agent=None, store="approvals"))
        except StoreUnavailableError as error:
            if not away:
                away = True
                _log.warning("requests for approval cannot be read: %s", error)
                tell(StoreUnavailable(agent=None, store="approvals"))
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
