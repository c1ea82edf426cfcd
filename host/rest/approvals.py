"""Requests for approval as clients see and answer them."""

from __future__ import annotations

from typing import Any

from toolcell.core.text.canonical_json import canonical_digest
from toolcell.core.text.counted import counted
from toolcell.core.text.printable import escaped_json
from toolcell.guard import ApprovalRequest, Approvals, Redactor

from ..http.tokens import Token
from . import bodies
from .errors import RefusedError


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
