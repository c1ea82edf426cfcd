"""The people who have approved a request that takes several, in the store."""

from __future__ import annotations

import sqlite3

from .types import ApprovalRequest, letters

VOTES_SCHEMA = """
CREATE TABLE IF NOT EXISTS approval_votes (
    number INTEGER PRIMARY KEY,
    request_id TEXT NOT NULL,
    person TEXT NOT NULL,
    approver TEXT NOT NULL,
    at REAL NOT NULL,
    UNIQUE (request_id, person)
) STRICT;
"""

APPROVED_BY = """
(SELECT json_group_array(approver) FROM (
    SELECT approver FROM approval_votes WHERE request_id = approvals.id ORDER BY number
))
"""
"""The names of those who have approved a row of `approvals`, in their order."""


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


def forget_votes(db: sqlite3.Connection) -> None:
    """Delete the votes of requests that are forgotten."""
    db.execute(
        "DELETE FROM approval_votes WHERE request_id NOT IN (SELECT id FROM approvals)"
    )
