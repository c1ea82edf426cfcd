"""Takes back what a person has approved and nobody has used, in the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass

from pydantic import TypeAdapter

from .types import StandingGrant, letters

GRANT = TypeAdapter(StandingGrant)


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """The approvals and grants of a person that count no longer."""

    requests: tuple[str, ...] = ()
    """Ids of the requests that the person had approved. They wait again."""

    grants: tuple[str, ...] = ()
    """Ids of the grants that have ended."""


def withdraw(
    db: sqlite3.Connection, name: str, now: float, keep_agents: Collection[str]
) -> Withdrawn:
    """Take back what a person has approved and nobody has used, but for some agents."""
    person = letters(name)
    requests = tuple(
        request_id
        for request_id, agent_id, approver, has_vote in db.execute(
            "SELECT id, agent_id, approver, EXISTS (SELECT 1 FROM approval_votes"
            " WHERE request_id = approvals.id AND person = ?) FROM approvals"
            " WHERE status IN ('pending', 'approved') AND expires_at > ?"
            " ORDER BY rowid",
            (person, now),
        )
        if agent_id not in keep_agents
        and (has_vote or letters(approver or "") == person)
    )
    grants = tuple(
        grant_id
        for grant_id, agent_id, text in db.execute(
            'SELECT id, agent_id, "grant" FROM approval_grants'
            " WHERE expires_at > ? ORDER BY rowid",
            (now,),
        )
        if agent_id not in keep_agents
        and letters(GRANT.validate_json(text).approver) == person
    )
    for request_id in requests:
        db.execute(
            "DELETE FROM approval_votes WHERE request_id = ? AND person = ?",
            (request_id, person),
        )
        db.execute(
            "UPDATE approvals SET status = 'pending', approver = NULL, reason = NULL,"
            " arguments = NULL WHERE id = ?",
            (request_id,),
        )
    for grant_id in grants:
        db.execute("DELETE FROM approval_grants WHERE id = ?", (grant_id,))
    return Withdrawn(requests=requests, grants=grants)
