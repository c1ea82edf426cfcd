"""The page of one request for approval, and the answers to it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from time import time
from typing import Any

import anyio.to_thread
from starlette.responses import Response

from toolcell.core import InvalidInputError, StoreUnavailableError
from toolcell.core.event_loop import beside_loop
from toolcell.guard import ApprovalRequest, Approve, Grant, Reject
from toolcell.guard.spi import ApprovalRecord

from ...operator.approved_calls import record_of
from ...operator.people import Role
from ..web.visit import ActionRefusedError, Visit, read_arguments
from .differences import differences
from .shown import show_request

GRANTS = (600, 3_600, 28_800, 86_400)
"""Seconds that grants may last."""

HOUR = 3_600
"""Seconds of the longest grant that takes no admin."""


async def show(visit: Visit) -> Response:
    """Show a request with everything that it would do, or its answer."""
    return await _page(visit, await _record(visit))


async def open_hidden(visit: Visit) -> Response:
    """Show the hidden parts of a request; who opened them is recorded."""
    request = (await _waiting(visit)).request
    await visit.sources.approvals.reveal(request.id, by=visit.person.id)
    return await _page(visit, await _record(visit), opened=True)


async def approve(visit: Visit) -> Response:
    """Let the call run as it was shown, once."""
    request = (await _waiting(visit)).request
    return await _answer(visit, request, _approval(visit))


async def grant(visit: Visit) -> Response:
    """Let the call run as it was shown, and calls like it for a time."""
    request = (await _waiting(visit)).request
    seconds = _seconds(visit.form.get("seconds", ""))
    role: Role = "admin" if seconds > HOUR else "approver"
    visit.require(role)
    names = None
    if visit.form.get("scope") == "some":
        names = tuple(visit.form.getlist("same"))
    given = Grant(seconds=seconds, arguments=names)
    return await _answer(visit, request, _approval(visit, grant=given), role)


async def edit(visit: Visit) -> Response:
    """Show what would be decided about the call with other arguments."""
    request = (await _waiting(visit)).request
    edited = read_arguments(visit.form.get("arguments", ""))
    owner = request.call.agent_id or ""
    shown = await show_request(visit.sources, request, edited=edited)
    changes = await beside_loop(
        owner, partial(differences, request.call.arguments, edited)
    )
    return await visit.render_large(
        "edited.html", owner, shown=shown, changes=changes, now=time()
    )


async def approve_edited(visit: Visit) -> Response:
    """Let the call run with the arguments that were decided about anew, once."""
    request = (await _waiting(visit)).request
    edited = read_arguments(visit.form.get("arguments", ""))
    shown = await show_request(visit.sources, request, edited=edited)
    if shown.problem:
        raise InvalidInputError(
            f"the call would fail: {shown.problem}", hint="change the arguments"
        )
    return await _answer(visit, request, _approval(visit, arguments=edited))


async def deny(visit: Visit) -> Response:
    """Refuse the call; the model reads the reason."""
    request = (await _waiting(visit)).request
    reason = visit.form.get("reason", "").replace("\r\n", "\n").strip()
    return await _answer(
        visit, request, Reject(approver=visit.person.id, reason=reason)
    )


async def _page(
    visit: Visit, record: ApprovalRecord, *, opened: bool = False
) -> Response:
    now = time()
    ended = None
    if record.status in ("approved", "used"):
        search = partial(record_of, visit.sources.records, record)
        with suppress(StoreUnavailableError):
            ended = await anyio.to_thread.run_sync(search)
    return await visit.render_large(
        "request.html",
        record.request.call.agent_id or "",
        shown=await show_request(visit.sources, record.request, opened=opened),
        record=record,
        marks=visit.console.vouching.marks().get(record.request.id, ()),
        state=record.state(now),
        ended=ended,
        now=now,
        times=[each for each in GRANTS if each <= HOUR or visit.person.has("admin")],
    )


async def _record(visit: Visit) -> ApprovalRecord:
    found = await visit.sources.approvals.find(visit.part("id"))
    if found is None:
        raise ActionRefusedError(404, "there is no such request")
    return found


async def _waiting(visit: Visit) -> ApprovalRecord:
    """Return the request, if it waits for this person.

    Raises:
        ActionRefusedError: It waits no more, or is not this person's to answer.
    """
    record = await _record(visit)
    request = record.request
    if not visit.person.may_answer(request.call.agent_id):
        raise ActionRefusedError(
            403,
            "you do not answer for this agent",
            hint="an admin says who answers for whom",
        )
    if record.state(time()) != "waiting":
        raise ActionRefusedError(409, _outcome(record))
    return record


def _outcome(record: ApprovalRecord) -> str:
    match record.status:
        case "pending" if record.ended_because is not None:
            return f"the request was ended: {record.ended_because}"
        case "pending":
            return "the request has expired"
        case "rejected":
            return f"{record.approver} has denied this call already"
        case _:
            names = " and ".join(record.approved_by)
            have = "has" if len(record.approved_by) == 1 else "have"
            return f"{names} {have} approved this call already"


def _approval(visit: Visit, **more: Any) -> Approve:
    seen = visit.form.get("digest", "")
    return Approve(approver=visit.person.id, seen=seen, **more)


async def _answer(
    visit: Visit,
    request: ApprovalRequest,
    reply: Approve | Reject,
    role: Role = "approver",
) -> Response:
    session = visit.session
    assert session is not None
    vouched = visit.console.vouching.of_passkey(session.passkey)
    if vouched is not None:
        await visit.record("vote_marked", request=request.id, voucher=vouched.voucher)
    try:
        await visit.console.rights.answer(session, request, reply, role)
    except InvalidInputError:
        record = await visit.sources.approvals.find(request.id)
        if record is None or record.state(time()) == "waiting":
            raise
        raise ActionRefusedError(409, _outcome(record)) from None
    return visit.go(f"/approvals/{request.id}")


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidInputError(
            "a grant lasts for seconds", hint="choose one of the times"
        ) from None
