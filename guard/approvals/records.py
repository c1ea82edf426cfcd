"""A request for approval with its answer, and the outcome that it makes for a call."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from pydantic import JsonValue, TypeAdapter

from toolcell.core import InvalidInputError, ToolCall

from .types import ApprovalOutcome, ApprovalRequest, letters

ApprovalStatus = Literal["pending", "approved", "rejected", "used"]

ApprovalState = Literal["waiting", "approved", "rejected", "used", "expired", "ended"]
"""The state of a request at a moment: it waits for an answer, it was approved and may
be used, it was rejected, its approval was used, nobody answered or used it before its
time was over, or it was ended, since nobody needed its answer any more."""

VOTES_SCHEMA = """
CREATE TABLE IF NOT EXISTS approval_votes (
    number INTEGER PRIMARY KEY,
    request_id TEXT NOT NULL,
    person TEXT NOT NULL,
    approver TEXT NOT NULL,
    at REAL NOT NULL,
    UNIQUE (request_id, person)
) STRICT;
CREATE TRIGGER IF NOT EXISTS approvals_forgotten AFTER DELETE ON approvals BEGIN
    DELETE FROM approval_votes WHERE request_id = OLD.id;
END;
"""

APPROVED_BY = """
(SELECT json_group_array(approver) FROM (
    SELECT approver FROM approval_votes WHERE request_id = approvals.id ORDER BY number
))
"""
"""The names of those who have approved a row of `approvals`, in their order."""

SELECT_RECORD = (
    "SELECT request, status, approver, reason, arguments, rowid,"  # noqa: S608 - ours
    f" {APPROVED_BY} FROM approvals"
)
"""Begins a query of records; `read_record` reads its rows."""

REQUEST = TypeAdapter(ApprovalRequest)

# A request that nobody answered in time, and an approval that nobody used, expire. One
# that was ended is pending with a reason; programs of older versions see it as expired.
IN_STATE: dict[ApprovalState, str] = {
    "waiting": "status = 'pending' AND expires_at > ?",
    "approved": "status = 'approved' AND expires_at > ?",
    "rejected": "status = 'rejected' AND ? IS NOT NULL",
    "used": "status = 'used' AND ? IS NOT NULL",
    "expired": "expires_at <= ?"
    " AND (status = 'approved' OR status = 'pending' AND reason IS NULL)",
    "ended": "status = 'pending' AND reason IS NOT NULL AND ? IS NOT NULL",
}
"""The condition of each state, at a time."""

_STANDS = (
    "(status = 'rejected' OR status IN ('pending', 'approved') AND expires_at > ?)"
)


def add_vote(
    db: sqlite3.Connection, request: ApprovalRequest, approver: str, now: float
) -> list[str] | None:
    """Count a person; return all who have approved, or None if nothing changed.

    The last one of the people that the request takes approves it. Nothing changes if it
    waits no longer, or if the person was counted before.
    """
    waits = db.execute(
        "SELECT 1 FROM approvals"
        " WHERE id = ? AND status = 'pending' AND expires_at > ?",
        (request.id, now),
    ).fetchone()
    added = waits and db.execute(
        "INSERT OR IGNORE INTO approval_votes (request_id, person, approver, at)"
        " VALUES (?, ?, ?, ?)",
        (request.id, letters(approver), approver, now),
    )
    if not added or added.rowcount != 1:
        return None
    rows = db.execute(
        "SELECT approver FROM approval_votes WHERE request_id = ? ORDER BY number",
        (request.id,),
    ).fetchall()
    if len(rows) >= request.approvers:
        db.execute(
            "UPDATE approvals SET status = 'approved', approver = ?, reason = ''"
            " WHERE id = ?",
            (approver, request.id),
        )
    return [name for (name,) in rows]


class ApprovalRecord(NamedTuple):
    """A request and its answer, if it has one."""

    request: ApprovalRequest
    status: ApprovalStatus
    approver: str | None
    reason: str | None
    arguments: dict[str, JsonValue] | None
    """The arguments that the approver put in the place of the call's."""

    number: int = 0
    """Grows from request to request of one store."""

    @property
    def approved_by(self) -> tuple[str, ...]:
        """The people who approved it; of several who have to, those who have."""
        if self.request.approvers == 1 and self.status in ("approved", "used"):
            return (self.approver or "",)
        return self.request.approved_by

    @property
    def ended_because(self) -> str | None:
        """The reason for which it was ended without an answer; None: it was not."""
        return self.reason if self.status == "pending" else None

    @property
    def why_unanswered(self) -> str:
        """The reason for which its call gets no answer, for the model."""
        because = self.ended_because
        return UNANSWERED if because is None else f"its request was ended: {because}"

    def state(self, now: float) -> ApprovalState:
        """Return its state at a time, in seconds since 1970 (UTC)."""
        if self.status in ("rejected", "used"):
            return self.status
        if self.ended_because is not None:
            return "ended"
        if self.request.expires_at <= now:
            return "expired"
        return "waiting" if self.status == "pending" else "approved"

    def state_in_words(self, now: float) -> str:
        """Return its state at a time, with the reason if it was ended."""
        state, because = self.state(now), self.ended_because
        return state if because is None else f"{state}: {because}"


def current_record(
    db: sqlite3.Connection, digest: str, now: float
) -> ApprovalRecord | None:
    """Return the last request of a digest that was rejected or has not expired."""
    row = db.execute(
        f"{SELECT_RECORD} WHERE digest = ? AND {_STANDS} ORDER BY rowid DESC LIMIT 1",
        (digest, now),
    ).fetchone()
    return None if row is None else read_record(row)


def read_record(
    row: tuple[str, ApprovalStatus, str | None, str | None, str | None, int, str],
) -> ApprovalRecord:
    """Return the record that a row of `SELECT_RECORD` holds."""
    request, status, approver, reason, arguments, number, votes = row
    return ApprovalRecord(
        request=replace(
            REQUEST.validate_json(request), approved_by=tuple(json.loads(votes))
        ),
        status=status,
        approver=approver,
        reason=reason,
        arguments=None if arguments is None else json.loads(arguments),
        number=number,
    )


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
