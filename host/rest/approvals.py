"""Requests for approval as clients see and answer them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from time import time
from typing import TypeVar

from toolcell.core.event_loop import read_large
from toolcell.core.text.printable import escaped_json
from toolcell.guard import ApprovalRequest, Approvals, Redactor, ShownRequest

from ..http.tokens import Token
from . import bodies
from .errors import RequestRefusedError

_R = TypeVar("_R")


async def shown(request: ApprovalRequest, redactor: Redactor) -> bodies.Approval:
    """Return a request as it is shown: no likely secret, and no hidden letter."""
    return await _read(request, partial(_approval_body, request, redactor))


async def _as_json(request: ApprovalRequest, redactor: Redactor) -> bytes:
    def written() -> bytes:
        return _approval_body(request, redactor).model_dump_json().encode()

    return await _read(request, written)


async def _read(request: ApprovalRequest, work: Callable[[], _R]) -> _R:
    """Return what work on a request finds; a large one is read beside the event loop.

    For one of a megabyte it takes up to two seconds.
    """
    return await read_large(request.call.agent_id or "", request.call.arguments, work)


def _approval_body(request: ApprovalRequest, redactor: Redactor) -> bodies.Approval:
    facts = escaped_json(ShownRequest(request, redactor).to_json())
    del facts["agent_id"]  # A client sees its own agent's alone.
    return bodies.Approval.model_validate(facts)


async def listed(
    approvals: Approvals, waiting: Iterable[str]
) -> AsyncGenerator[bytes, None]:
    """Yield a list of requests in parts.

    One request is in memory at a time: all of them may have 100 MB and more.
    """
    before = b'{"approvals":['
    for request_id in waiting:
        found = await approvals.find(request_id)
        if found is not None and found.status == "pending":
            yield before + await _as_json(found.request, approvals.redactor)
            before = b","
    yield (b"]}" if before == b"," else before + b"]}")


async def find(approvals: Approvals, agent_id: str, request_id: str) -> ApprovalRequest:
    """Return a request of an agent that waits.

    Raises:
        RequestRefusedError: 404: it has none with this id.
    """
    found, now = await approvals.find(request_id), time()
    hint = "`GET /v1/approvals` lists those that wait"
    if found is not None and found.request.call.agent_id == agent_id:
        if found.state(now) == "waiting":
            return found.request
        hint = f"its state is {found.state_in_words(now)}"
    raise RequestRefusedError(
        404, "not_found", "no request with this id waits", hint=hint
    )


def approver(token: Token) -> str:
    """Return the name under which the person at a client answers.

    Raises:
        RequestRefusedError: 403: the token is of an agent without a person.
    """
    if not token.asks_person:
        raise RequestRefusedError(
            403,
            "no_person",
            "this token does not let a person answer",
            hint="`toolcell tokens create --asks-person` makes one that does",
        )
    return f"token {token.id}"


def check_alone(request: ApprovalRequest) -> None:
    """Check that one person approves the request.

    Raises:
        RequestRefusedError: 403: it takes several people, of whom the one at the
            agent's client does not count.
    """
    if request.approvers > 1:
        raise RequestRefusedError(
            403,
            "several_people",
            f"{request.approvers} people have to approve this call",
            hint="they do so in the console or with `toolcell approvals`",
        )
