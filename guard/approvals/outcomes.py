"""The outcomes that requests and their answers make for calls."""

from __future__ import annotations

from typing import Any

from toolcell.core import InvalidInputError, ToolCall

from .records import ApprovalRecord
from .types import ApprovalOutcome, ApprovalRequest

UNANSWERED = "nobody has answered the request for approval"


def outcome_of(call: ToolCall, record: ApprovalRecord) -> ApprovalOutcome:
    """Return the outcome that the answer to a request makes for a call."""
    if record.status == "rejected":
        said = f": {record.reason}" if record.reason else ""
        return ApprovalOutcome(
            status="rejected",
            call=call,
            reason=f"a person refused this call{said}",
            approver=record.approver,
            approval_id=record.request.id,
        )
    edited = record.arguments is not None
    return ApprovalOutcome(
        status="approved",
        call=with_arguments(call, record.arguments) if edited else call,
        approver=record.approver,
        approved_by=record.approved_by,
        approval_id=record.request.id,
        edited=edited,
    )


def no_answer(
    call: ToolCall, reason: str, request: ApprovalRequest | None = None
) -> ApprovalOutcome:
    """Return the outcome of a call that nobody has answered.

    Args:
        call: The call.
        reason: The reason, for the model.
        request: The request that stays open; None: there is none.
    """
    return ApprovalOutcome(
        status="unanswered",
        call=call,
        reason=reason,
        approval_id=None if request is None else request.id,
        expires_at=None if request is None else request.expires_at,
    )


def as_it_stands(call: ToolCall, record: ApprovalRecord | None) -> ApprovalOutcome:
    """Return the outcome of a request that nobody waits for; None: there is none."""
    if record is None:
        return no_answer(call, "too many calls of this agent wait for approval")
    if record.status == "pending":
        return no_answer(call, UNANSWERED, record.request)
    return outcome_of(call, record)


def with_arguments(call: ToolCall, arguments: Any) -> ToolCall:
    """Return a call with other arguments.

    Raises:
        InvalidInputError: The arguments are not JSON.
    """
    made = ToolCall(**{**dict(call), "arguments": arguments})
    if made.malformed is not None:
        raise InvalidInputError(
            "the arguments of an approval are no JSON object",
            hint='give them like {"amount": 7}',
        )
    return made
