"""Messages that are to be delivered, in an SQLite file that several hosts share."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from toolcell.core import StoreUnavailableError

from ..config.state_file import open_state_file

MAX_WAITING = 1_000
"""Messages of one webhook that wait. When it is reached the oldest is dropped, and a
warning is logged."""

KEEP_SECONDS = 40 * 86_400
"""Seconds for which it is known that a request was reported; it is stored for less."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS webhook_start (at REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS webhook_requests (
    id TEXT PRIMARY KEY,
    asked_at REAL NOT NULL,
    -- 0: it waits; 1: it has ended; 2: it waits again, and so on.
    ended INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS webhook_messages (
    id TEXT NOT NULL,
    webhook TEXT NOT NULL,
    body BLOB NOT NULL,
    made_at REAL NOT NULL,
    next_at REAL NOT NULL,
    tries INTEGER NOT NULL,
    PRIMARY KEY (webhook, id)
) STRICT;
"""


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A message to be delivered."""

    id: str
    webhook: str
    body: bytes
    made_at: float
    """Seconds since 1970 (UTC)."""

    tries: int = 0
    """Attempts before this one."""


class MessageQueue:
    """The messages that wait, and the requests that were reported.

    Each message is put in once, whichever host sees its event first, and stays until it
    is delivered or dropped.

    Args:
        path: The file, in an existing folder.
        now: The time, in seconds since 1970 (UTC). Requests from before the first
            opening are not reported.

    Raises:
        ConfigError: The file cannot be used.
    """

    def __init__(self, path: Path, now: float) -> None:
        self._lock = threading.Lock()
        self._db = open_state_file(
            path, lambda db: db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        )
        with self._transaction() as db:
            db.execute(
                "INSERT INTO webhook_start SELECT ? WHERE NOT EXISTS"
                " (SELECT 1 FROM webhook_start)",
                (now,),
            )
            [self.start] = db.execute("SELECT at FROM webhook_start").fetchone()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._db.begin()
                yield self._db
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                raise StoreUnavailableError(
                    f"the messages of webhooks cannot be read or written: {error}"
                ) from error
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def add_asked(
        self, request_id: str, asked_at: float, messages: Iterable[WaitingMessage]
    ) -> None:
        """Put in the messages of a new request, once."""
        with self._transaction() as db:
            added = db.execute(
                "INSERT OR IGNORE INTO webhook_requests VALUES (?, ?, 0)",
                (request_id, asked_at),
            )
            if added.rowcount == 1:
                _put(db, messages)
                db.execute(
                    "DELETE FROM webhook_requests WHERE ended % 2 AND asked_at < ?",
                    (asked_at - KEEP_SECONDS,),
                )

    def add_next(
        self, request_id: str, turn: int, messages: Iterable[WaitingMessage]
    ) -> None:
        """Put in the messages of a turn of a request, once.

        Args:
            request_id: The request.
            turn: The turn, of which odd ones are ends: 1 the first end, 2 that it waits
                again.
            messages: The messages.
        """
        with self._transaction() as db:
            done = db.execute(
                "UPDATE webhook_requests SET ended = ? WHERE id = ? AND ended = ?",
                (turn, request_id, turn - 1),
            )
            if done.rowcount == 1:
                _put(db, messages)

    def known(self, request_ids: list[str]) -> set[str]:
        """Return those of the requests that were reported."""
        with self._transaction() as db:
            rows = db.execute(
                "SELECT id FROM webhook_requests WHERE id IN"
                " (SELECT value FROM json_each(?))",
                (json.dumps(request_ids),),
            )
            return {request_id for (request_id,) in rows}

    def open_requests(self) -> dict[str, int]:
        """Return the requests whose ends were not reported, with their turns."""
        with self._transaction() as db:
            return dict(
                db.execute("SELECT id, ended FROM webhook_requests WHERE ended % 2 = 0")
            )

    def ended_requests(self, request_ids: Iterable[str]) -> dict[str, int]:
        """Return those of the requests whose ends were reported, with their turns."""
        with self._transaction() as db:
            return dict(
                db.execute(
                    "SELECT id, ended FROM webhook_requests WHERE ended % 2 AND id IN"
                    " (SELECT value FROM json_each(?))",
                    (json.dumps([*request_ids]),),
                )
            )

    def claim(
        self, webhook: str, now: float, lease_seconds: float
    ) -> WaitingMessage | None:
        """Return the oldest message that is due, and keep it from others meanwhile."""
        with self._transaction() as db:
            row = db.execute(
                "SELECT id, webhook, body, made_at, tries FROM webhook_messages"
                " WHERE webhook = ? AND next_at <= ? ORDER BY made_at, rowid LIMIT 1",
                (webhook, now),
            ).fetchone()
            if row is None:
                return None
            found = WaitingMessage(*row)
            self._set(db, found, next_at=now + lease_seconds, tries=found.tries + 1)
            return found

    def postpone(self, message: WaitingMessage, next_at: float) -> None:
        """Let a message that was claimed be tried again at a time."""
        with self._transaction() as db:
            self._set(db, message, next_at=next_at, tries=message.tries + 1)

    def _set(
        self,
        db: sqlite3.Connection,
        message: WaitingMessage,
        *,
        next_at: float,
        tries: int,
    ) -> None:
        db.execute(
            "UPDATE webhook_messages SET next_at = ?, tries = ?"
            " WHERE webhook = ? AND id = ?",
            (next_at, tries, message.webhook, message.id),
        )

    def remove(self, message: WaitingMessage) -> None:
        """Take out a message that was delivered, or never will be."""
        with self._transaction() as db:
            db.execute(
                "DELETE FROM webhook_messages WHERE webhook = ? AND id = ?",
                (message.webhook, message.id),
            )

    def drop_excess(self, webhook: str) -> int:
        """Drop the oldest messages beyond `MAX_WAITING`; return their number."""
        with self._transaction() as db:
            return db.execute(
                "DELETE FROM webhook_messages WHERE rowid IN (SELECT rowid FROM"
                " webhook_messages WHERE webhook = ?"
                " ORDER BY made_at DESC, rowid DESC LIMIT -1 OFFSET ?)",
                (webhook, MAX_WAITING),
            ).rowcount

    def waiting(self, webhook: str) -> int:
        """Return the number of messages that wait."""
        with self._transaction() as db:
            row = db.execute(
                "SELECT count(*) FROM webhook_messages WHERE webhook = ?", (webhook,)
            ).fetchone()
            return int(row[0])


def _put(db: sqlite3.Connection, messages: Iterable[WaitingMessage]) -> None:
    db.executemany(
        "INSERT OR IGNORE INTO webhook_messages VALUES (?, ?, ?, ?, ?, 0)",
        [
            (
                message.id,
                message.webhook,
                message.body,
                message.made_at,
                message.made_at,
            )
            for message in messages
        ],
    )
