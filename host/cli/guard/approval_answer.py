"""Hands in an answer that was given on the command line."""

from __future__ import annotations

from typing import Any

from toolcell.core import InvalidInputError
from toolcell.guard import Approvals, Approve, Reject

from ...terminal.user_name import account_name


async def send_answer(
    approvals: Approvals, request_id: str, reply: Approve | Reject
) -> dict[str, Any]:
    """Hand an answer in, and return it as JSON values.

    Args:
        approvals: The approvals.
        request_id: The request.
        reply: The answer.

    Raises:
        InvalidInputError: As `Approvals.answer`; or it names nothing that was seen; or
            it takes several people, and this one approves in the name of another.
    """
    if isinstance(reply, Approve) and reply.seen is None and reply.arguments is None:
        raise InvalidInputError(
            "an approval names what was seen",
            hint=f"`toolcell approvals show {request_id}` says it as `seen`; "
            "approve with it as --seen",
        )
    record = await approvals.find(request_id)
    several = record is not None and record.request.approvers > 1
    own = account_name()
    if several and isinstance(reply, Approve) and reply.approver != own:
        raise InvalidInputError(
            f"a call that takes several people is approved as {own}, who runs this",
            hint="leave out --by; others answer from their own accounts, or in the "
            "console",
        )
    await approvals.answer(request_id, reply)
    sent: dict[str, Any] = {
        "request": request_id,
        "answer": type(reply).__name__.lower(),
        "approver": reply.approver,
    }
    record = await approvals.find(request_id) if several else None
    if record is not None:
        sent["approvers"] = record.request.approvers
        sent["approved_by"] = record.approved_by
    return sent


def answer_line(sent: dict[str, Any]) -> str:
    """Return what `send_answer` returned as a line for people."""
    line = f"{sent['answer']}: {sent['request']}"
    if "approvers" not in sent:
        return line
    return f"{line} ({len(sent['approved_by'])} of {sent['approvers']} people)"
