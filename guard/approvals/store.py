"""The store of requests, answers and grants: SQLite, in a file or in memory."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

from pydantic import JsonValue

from toolcell.core import ConfigError, StoreUnavailableError
from toolcell.core.storage.processes import ForkAware, awaited_lock
from toolcell.core.storage.sqlite import SharedDatabase, open_sqlite

from .records import (
    IN_STATE,
    REQUEST,
    SELECT_RECORD,
    VOTES_SCHEMA,
    ApprovalRecord,
    ApprovalState,
    add_vote,
    current_record,
    read_record,
)
from .types import ApprovalRequest, StandingGrant
from .withdrawal import GRANT, Withdrawn, withdraw

BUSY_SECONDS = 0.5
"""Longest wait for other writers. When it is over, a `StoreUnavailableError`."""

KEEP_SECONDS = 30 * 86_400
"""Seconds that requests and grants are remembered after they have expired."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS approvals (
    id TEXT PRIMARY KEY,
    digest TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    status TEXT NOT NULL,
    asked_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    request TEXT NOT NULL,
    approver TEXT,
    reason TEXT,
    arguments TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS approvals_by_digest ON approvals (digest);
DROP INDEX IF EXISTS approvals_by_agent;
CREATE INDEX IF NOT EXISTS approvals_of_agent
    ON approvals (agent_id, status, expires_at);
CREATE INDEX IF NOT EXISTS approvals_by_status ON approvals (status);
CREATE INDEX IF NOT EXISTS approvals_by_end ON approvals (status, expires_at);
CREATE TABLE IF NOT EXISTS approval_grants (
    id TEXT PRIMARY KEY,
    agent_id TEXT NOT NULL,
    expires_at REAL NOT NULL,
    "grant" TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS approval_grants_by_agent ON approval_grants (agent_id);
"""
_SCHEMA += VOTES_SCHEMA


class ApprovalStore(ForkAware):
    """Keeps requests, answers and grants; several processes may share one file.

    A transaction that has ended survives SIGKILL and power loss (WAL,
    `synchronous = FULL`).

    Args:
        path: The SQLite file, created with mode 0600; it may hold other tables. None:
            in memory, for this process alone.

    Raises:
        ConfigError: The file cannot be opened.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        super().__init__()
        self._path = None if path is None else str(path)
        self._inherited: list[sqlite3.Connection] = []
        self._open()
        self._lock = awaited_lock()

    def _open(self) -> None:
        try:
            self._db = _connected(self._path)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"the approvals in {self._path} cannot be opened: {error}",
                hint="give a SQLite file that this user may write, on a disk with room",
            ) from error
        if self._path is None:
            # A store in memory has no owner that closes it.
            weakref.finalize(self, self._db.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, after the transactions that threads have begun."""
        if not self._is_inherited:
            with self._lock:
                self._db.close()

    def _renew(self) -> None:
        # A connection to a file must not be used, nor closed, by a forked process.
        if self._path is not None:
            self._inherited.append(self._db)
            self._open()
        # A lock that was held during a fork would stay held.
        self._lock = awaited_lock()

    @contextmanager
    def _transaction(
        self, kind: Literal["DEFERRED", "IMMEDIATE"] = "IMMEDIATE"
    ) -> Iterator[sqlite3.Connection]:
        self._follow_fork()
        with self._lock:
            try:
                self._db.begin(kind)
                yield self._db
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                raise StoreUnavailableError(
                    f"the approvals cannot be read or written: {error}"
                ) from error
            finally:
                with contextlib.suppress(sqlite3.Error):
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")

    def _reading(self) -> AbstractContextManager[sqlite3.Connection]:
        return self._transaction("DEFERRED")

    def open(
        self,
        request: ApprovalRequest,
        *,
        max_pending: int,
        record: Callable[[], object],
    ) -> ApprovalRecord | None:
        """Return the record that there is for a call, or store a new request for it.

        Args:
            request: The new request.
            max_pending: Most waiting requests of the agent. When it is reached None is
                returned.
            record: Called before a new request is stored; if it raises, none is.
        """
        now = request.asked_at
        with self._transaction() as db:
            found = current_record(db, request.digest, now)
            if found is not None:
                return _waited_for_again(db, found, request)
            [waiting] = db.execute(
                "SELECT count(*) FROM approvals"
                " WHERE agent_id = ? AND status = 'pending' AND expires_at > ?",
                (request.call.agent_id, now),
            ).fetchone()
            if waiting >= max_pending:
                return None
            record()
            _forget(db, now - KEEP_SECONDS)
            db.execute(
                "INSERT INTO approvals VALUES (?, ?, ?, 'pending', ?, ?, ?, NULL, NULL,"
                " NULL)",
                (
                    *(request.id, request.digest, request.call.agent_id),
                    *(now, request.expires_at, REQUEST.dump_json(request).decode()),
                ),
            )
            return ApprovalRecord(request, "pending", None, None, None)

    def leave(self, request: ApprovalRequest, now: float) -> None:
        """Note that the call of a request waits no more."""
        with self._transaction() as db:
            row = db.execute(f"{SELECT_RECORD} WHERE id = ?", (request.id,)).fetchone()
            stored = None if row is None else read_record(row).request
            # The same call may wait anew, in another process.
            if stored is not None and stored.waits_until == request.waits_until:
                _rewrite(db, replace(stored, waits_until=now))

    def end(
        self, request_id: str, now: float, reason: str, record: Callable[[], object]
    ) -> bool:
        """End a request without an answer; return whether it was still waiting."""
        with self._transaction() as db:
            row = db.execute(f"{SELECT_RECORD} WHERE id = ?", (request_id,)).fetchone()
            found = None if row is None else read_record(row)
            if found is None or found.state(now) != "waiting":
                return False
            # `json_set` would round the time to 15 digits.
            _rewrite(db, replace(found.request, expires_at=now))
            ended = "UPDATE approvals SET expires_at = ?, reason = ? WHERE id = ?"
            db.execute(ended, (now, reason, request_id))
            record()
            return True

    def current_record(self, digest: str, now: float) -> ApprovalRecord | None:
        """Return the last request for a call that has not expired."""
        with self._reading() as db:
            return current_record(db, digest, now)

    def check(self) -> None:
        """Check that the store can be written. Raises StoreUnavailableError."""
        with self._transaction():
            pass

    def get(self, request_id: str) -> ApprovalRecord | None:
        """Return a request by its id."""
        with self._reading() as db:
            row = db.execute(f"{SELECT_RECORD} WHERE id = ?", (request_id,)).fetchone()
            return None if row is None else read_record(row)

    def ended(
        self, request_ids: Iterable[str], now: float
    ) -> dict[str, ApprovalRecord | None]:
        """Return the records of requests that no longer wait; None: forgotten."""
        wanted = set(request_ids)
        with self._reading() as db:
            waiting = db.execute(
                "SELECT id FROM approvals WHERE status = 'pending'"
                " AND expires_at > ? AND id IN (SELECT value FROM json_each(?))",
                (now, json.dumps([*wanted])),
            )
            wanted.difference_update(request_id for (request_id,) in waiting)
            rows = {
                each: db.execute(f"{SELECT_RECORD} WHERE id = ?", (each,)).fetchone()
                for each in wanted
            }
        return {each: row and read_record(row) for each, row in rows.items()}

    def pending(self, now: float) -> list[ApprovalRequest]:
        """Return the requests that wait for an answer, the oldest first."""
        with self._reading() as db:
            rows = db.execute(
                f"{SELECT_RECORD} WHERE status = 'pending' AND expires_at > ?"
                " ORDER BY asked_at, rowid",
                (now,),
            ).fetchall()
            return [read_record(row).request for row in rows]

    def waiting(self, now: float, agent_id: str | None = None) -> dict[str, int]:
        """Return the ids of requests that wait, the oldest first, and their votes."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT id, (SELECT count(*) FROM approval_votes WHERE request_id = id)"
                " FROM approvals WHERE status = 'pending' AND expires_at > ?1"
                " AND (agent_id = ?2 OR ?2 IS NULL) ORDER BY asked_at, rowid",
                (now, agent_id),
            )
            return dict(rows.fetchall())

    def count_waited_for(self, now: float) -> int:
        """Return the number of requests whose calls still wait, as far as is known."""
        with self._reading() as db:
            [count] = db.execute(
                "SELECT count(*) FROM approvals WHERE status = 'pending'"
                " AND expires_at > ?1"
                " AND ifnull(json_extract(request, '$.waits_until'), expires_at) > ?1",
                (now,),
            ).fetchone()
        return int(count)

    def recent(
        self,
        now: float,
        *,
        state: ApprovalState | None = None,
        agent_id: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[ApprovalRecord]:
        """Return the newest requests, with their answers, the newest first."""
        with self._reading() as db:
            rows = db.execute(
                f"{SELECT_RECORD} WHERE {'? > 0' if state is None else IN_STATE[state]}"
                " AND (agent_id = ? OR ? IS NULL) AND (rowid < ? OR ? IS NULL)"
                " ORDER BY rowid DESC LIMIT ?",
                (now, agent_id, agent_id, before, before, limit),
            ).fetchall()
            return [read_record(row) for row in rows]

    def answer(
        self,
        request_id: str,
        status: Literal["approved", "rejected"],
        *,
        now: float,
        approver: str,
        reason: str = "",
        arguments: dict[str, JsonValue] | None,
        grant: StandingGrant | None = None,
        record: Callable[[], object],
    ) -> bool:
        """Answer a request once; return whether it was still waiting."""
        edited = None if arguments is None else json.dumps(arguments)
        with self._transaction() as db:
            done = db.execute(
                "UPDATE approvals SET status = ?, approver = ?, reason = ?,"
                " arguments = ? WHERE id = ? AND status = 'pending' AND expires_at > ?",
                (status, approver, reason, edited, request_id, now),
            )
            if done.rowcount != 1:
                return False
            if grant is not None:
                text = GRANT.dump_json(grant).decode()
                values = (grant.id, grant.agent_id, grant.expires_at, text)
                db.execute("INSERT INTO approval_grants VALUES (?, ?, ?, ?)", values)
            record()
            return True

    def add_vote(
        self,
        request: ApprovalRequest,
        approver: str,
        now: float,
        record: Callable[[list[str]], object],
    ) -> bool:
        """Count one of several people who have to approve a request.

        The last of them approves it.

        Args:
            request: The request.
            approver: The name of the person.
            now: The time, in seconds since 1970 (UTC).
            record: Called with all who have approved; if it raises, no approval counts.

        Returns:
            False if the request waits no longer, or the person was counted before.
        """
        with self._transaction() as db:
            approved_by = add_vote(db, request, approver, now)
            if approved_by is None:
                return False
            record(approved_by)
            return True

    def use(self, request_id: str, now: float, record: Callable[[], object]) -> bool:
        """Use an approval up; return whether there was one."""
        with self._transaction() as db:
            done = db.execute(
                "UPDATE approvals SET status = 'used'"
                " WHERE id = ? AND status = 'approved' AND expires_at > ?",
                (request_id, now),
            )
            if done.rowcount != 1:
                return False
            record()
            return True

    def grants(self, now: float, agent_id: str | None = None) -> list[StandingGrant]:
        """Return the grants that have not ended, of one agent or of all."""
        with self._reading() as db:
            rows = db.execute(
                'SELECT "grant" FROM approval_grants'
                " WHERE expires_at > ? AND (agent_id = ? OR ? IS NULL) ORDER BY rowid",
                (now, agent_id, agent_id),
            ).fetchall()
            return [GRANT.validate_json(text) for [text] in rows]

    def use_grant(
        self, grant_id: str, now: float, record: Callable[[], object]
    ) -> bool:
        """Record a use of a grant; return whether there was one."""
        # It writes nothing, and takes the lock all the same: no grant ends meanwhile.
        with self._transaction() as db:
            found = db.execute(
                "SELECT 1 FROM approval_grants WHERE id = ? AND expires_at > ?",
                (grant_id, now),
            ).fetchone()
            if found is None:
                return False
            record()
            return True

    def revoke(self, grant_id: str, record: Callable[[], object]) -> bool:
        """End a grant; return whether there was one."""
        with self._transaction() as db:
            done = db.execute("DELETE FROM approval_grants WHERE id = ?", (grant_id,))
            if done.rowcount != 1:
                return False
            record()
            return True

    def withdraw(
        self,
        name: str,
        now: float,
        keep_agents: Collection[str],
        record: Callable[[Withdrawn], object],
    ) -> Withdrawn:
        """Take back what a person has approved and nobody has used.

        Args:
            name: The name of the person.
            now: The time, in seconds since 1970 (UTC).
            keep_agents: Agents for which approvals and grants stay.
            record: Called with what is taken back, if there is anything; if it raises,
                nothing is.
        """
        with self._transaction() as db:
            withdrawn = withdraw(db, name, now, keep_agents)
            if withdrawn != Withdrawn():
                record(withdrawn)
            return withdrawn


def _connected(path: str | None) -> SharedDatabase:
    if path is None:
        memory = sqlite3.connect(
            ":memory:",
            isolation_level=None,
            check_same_thread=False,
            factory=SharedDatabase,
        )
        memory.executescript(_SCHEMA)
        return memory
    return open_sqlite(
        path,
        lambda db: db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;"),
        synchronous="FULL",
        busy_seconds=BUSY_SECONDS,
    )


def _waited_for_again(
    db: sqlite3.Connection, found: ApprovalRecord, asked: ApprovalRequest
) -> ApprovalRecord:
    """Note that a call which was asked for before waits anew; return its record."""
    if found.status != "pending" or asked.waits_until is None:
        return found
    until = min(asked.waits_until, found.request.expires_at)
    if until > (found.request.waits_until or 0.0):
        request = replace(found.request, waits_until=until)
        _rewrite(db, request)
        return found._replace(request=request)
    return found


def _rewrite(db: sqlite3.Connection, request: ApprovalRequest) -> None:
    text = REQUEST.dump_json(request).decode()
    db.execute("UPDATE approvals SET request = ? WHERE id = ?", (text, request.id))


def _forget(db: sqlite3.Connection, before: float) -> None:
    # By each status, as an index has them: without it all rows would be looked at.
    db.execute(
        "DELETE FROM approvals WHERE expires_at <= ?"
        " AND status IN ('pending', 'approved', 'rejected', 'used')",
        (before,),
    )
    db.execute("DELETE FROM approval_grants WHERE expires_at <= ?", (before,))
