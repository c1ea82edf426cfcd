"""The tables of threads, and the transactions on them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, starmap
from typing import Any

from . import errors
from .base import Lease, Stored
from .reading import HeadReader, read_head
from .records import ThreadHead, ThreadStatus, chained

# Rows may be large: tables WITHOUT ROWID would keep them in inner pages.
SCHEMA = """
CREATE TABLE IF NOT EXISTS flow_threads (
    thread TEXT PRIMARY KEY,
    graph TEXT NOT NULL,
    status TEXT NOT NULL,
    changed INTEGER NOT NULL,
    head BLOB NOT NULL,
    sum BLOB NOT NULL,
    chain BLOB NOT NULL,
    token INTEGER NOT NULL,
    owner TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS flow_changed ON flow_threads (changed);
CREATE INDEX IF NOT EXISTS flow_running ON flow_threads (changed)
    WHERE status = 'running';
CREATE INDEX IF NOT EXISTS flow_interrupted ON flow_threads (changed)
    WHERE status = 'interrupted';
CREATE TABLE IF NOT EXISTS flow_checkpoints (
    thread TEXT NOT NULL,
    number INTEGER NOT NULL,
    id TEXT NOT NULL,
    whole INTEGER NOT NULL,
    record BLOB NOT NULL,
    sum BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS flow_checkpoint
    ON flow_checkpoints (thread, number);
CREATE UNIQUE INDEX IF NOT EXISTS flow_checkpoint_id ON flow_checkpoints (thread, id);
CREATE TABLE IF NOT EXISTS flow_journal (
    thread TEXT NOT NULL,
    number INTEGER NOT NULL,
    record BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS flow_journal_row ON flow_journal (thread, number);
CREATE TABLE IF NOT EXISTS flow_answers (
    thread TEXT NOT NULL,
    key TEXT NOT NULL,
    record BLOB NOT NULL,
    sum BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS flow_answer ON flow_answers (thread, key);
"""
_TABLES = ("flow_threads", "flow_checkpoints", "flow_journal", "flow_answers")


@dataclass(slots=True)
class _Last:
    """The last rows of a thread, which the next ones follow."""

    token: int
    checkpoint: int
    """The number of the last checkpoint."""

    checkpoint_sum: bytes
    journal: int
    """The number of records in the journal."""

    chain: bytes
    head: bytes


class Tables:
    """Each method is the inside of one transaction.

    `chain` of a thread is the checksum over its checkpoints and then its journal, so
    that a row that was changed, lost or moved is found when the thread is read.

    Args:
        owner: The name under which this store owns threads.
        lives: Returns whether another owner, given by name, lives.
    """

    def __init__(self, owner: str, lives: Callable[[str], bool]) -> None:
        self._owner = owner
        self._lives = lives
        self._held: dict[str, int] = {}
        """The tokens of threads that this store's users hold."""

        self._reader = HeadReader()
        self._lasts: dict[str, _Last] = {}
        """As far as known: nobody else writes after the last rows of those threads."""

    def forget(self) -> None:
        """Read the last rows anew: a transaction was rolled back."""
        self._lasts.clear()

    def create(
        self, db: sqlite3.Connection, head: ThreadHead, checkpoint: bytes
    ) -> Lease:
        thread = head.thread_id
        text, chain = head.to_bytes(), chained(thread.encode(), checkpoint)
        try:
            db.execute(
                "INSERT INTO flow_threads VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?)",
                [
                    *(thread, head.graph, head.status, _next_change(db)),
                    *(text, chained(chain, text), chain, self._owner),
                ],
            )
        except sqlite3.IntegrityError:
            raise errors.thread_busy(thread) from None
        self._add(db, thread, 0, head.checkpoint, True, checkpoint, chain)
        return self._hold(thread, 1)

    def _hold(self, thread: str, token: int) -> Lease:
        self._held[thread] = token
        # A thread that was deleted and made anew has the tokens of the old one.
        self._lasts.pop(thread, None)
        return Lease(thread, token)

    def _add(
        self, db: sqlite3.Connection, thread: str, number: int, *rest: Any
    ) -> None:
        try:
            db.execute(
                "INSERT INTO flow_checkpoints VALUES (?, ?, ?, ?, ?, ?)",
                [thread, number, *rest],
            )
        except sqlite3.IntegrityError:
            raise errors.checkpoint_exists(thread) from None

    def claim(self, db: sqlite3.Connection, thread: str, steal: bool) -> Lease:
        token, owner = self._row(db, thread, "token, owner")
        if not steal and self._is_held(thread, token, owner):
            raise errors.thread_busy(thread)
        db.execute(
            "UPDATE flow_threads SET token = ?, owner = ? WHERE thread = ?",
            [token + 1, self._owner, thread],
        )
        return self._hold(thread, token + 1)

    def _is_held(self, thread: str, token: int, owner: str | None) -> bool:
        if owner is None:
            return False
        if owner == self._owner:
            return self._held.get(thread) == token
        return self._lives(owner)

    def let_go(self, lease: Lease) -> None:
        """Let this process claim a thread again, whatever the file says."""
        if self._held.get(lease.thread_id) == lease.token:
            del self._held[lease.thread_id]

    def release(self, db: sqlite3.Connection, lease: Lease) -> None:
        if lease.thread_id not in self._held:
            self._lasts.pop(lease.thread_id, None)
        db.execute(
            "UPDATE flow_threads SET owner = NULL WHERE thread = ? AND token = ?",
            [lease.thread_id, lease.token],
        )

    def append(
        self,
        db: sqlite3.Connection,
        lease: Lease,
        records: Sequence[bytes],
        head: ThreadHead | None,
    ) -> None:
        last, thread = self._last(db, lease), lease.thread_id
        if head is not None:
            last.head = head.to_bytes()
        for record in records:
            last.chain = chained(last.chain, record)
        self._set_head(db, thread, last, None if head is None else head.status)
        numbered = enumerate(records, last.journal)
        db.executemany(
            "INSERT INTO flow_journal VALUES (?, ?, ?)",
            [(thread, number, record) for number, record in numbered],
        )
        last.journal += len(records)

    def commit(
        self,
        db: sqlite3.Connection,
        lease: Lease,
        checkpoint: bytes,
        head: ThreadHead,
        whole: bool,
    ) -> None:
        last, thread = self._last(db, lease), lease.thread_id
        last.chain = last.checkpoint_sum = chained(last.checkpoint_sum, checkpoint)
        last.checkpoint += 1
        last.head = head.to_bytes()
        self._set_head(db, thread, last, head.status)
        row = (last.checkpoint, head.checkpoint, whole, checkpoint, last.chain)
        self._add(db, thread, *row)
        if last.journal:
            db.execute("DELETE FROM flow_journal WHERE thread = ?", [thread])
            last.journal = 0
        db.execute("DELETE FROM flow_answers WHERE thread = ?", [thread])

    def _last(self, db: sqlite3.Connection, lease: Lease) -> _Last:
        """Return the last rows of a thread. Raises LeaseLostError."""
        last = self._lasts.get(lease.thread_id)
        if last is not None and last.token == lease.token:
            return last
        row = db.execute(
            "SELECT number, c.sum,"
            " (SELECT count(*) FROM flow_journal WHERE thread = ?1), chain, head"
            " FROM flow_threads t JOIN flow_checkpoints c ON c.thread = t.thread"
            " WHERE t.thread = ?1 AND token = ?2 AND owner = ?3"
            " ORDER BY number DESC LIMIT 1",
            [lease.thread_id, lease.token, self._owner],
        ).fetchone()
        if row is None:
            raise errors.lease_lost(lease.thread_id)
        last = self._lasts[lease.thread_id] = _Last(lease.token, *row)
        return last

    def _set_head(
        self,
        db: sqlite3.Connection,
        thread: str,
        last: _Last,
        status: ThreadStatus | None,
    ) -> None:
        """Write the head and the sums if the lease holds. Raises LeaseLostError.

        Args:
            db: The database.
            thread: The id of the thread.
            last: Its last rows after this transaction.
            status: The status; None: the head is as it was.
        """
        values: list[Any] = [chained(last.chain, last.head), last.chain]
        change = ""
        if status is not None:
            change = ", head = ?, status = ?"
            values += [last.head, status]
            if _last_changed(db) != thread:
                change += ", changed = (SELECT max(changed) + 1 FROM flow_threads)"
        written = db.execute(
            f"UPDATE flow_threads SET sum = ?, chain = ?{change}"  # noqa: S608
            " WHERE thread = ? AND token = ? AND owner = ?",
            [*values, thread, last.token, self._owner],
        )
        if written.rowcount != 1:
            raise errors.lease_lost(thread)

    def put_once(
        self,
        db: sqlite3.Connection,
        thread: str,
        key: str,
        record: bytes,
        at: str | None,
    ) -> bool:
        self._row(db, thread, "token")
        if at not in (None, _latest(db, thread)):
            return False
        inserted = db.execute(
            "INSERT OR IGNORE INTO flow_answers VALUES (?, ?, ?, ?)",
            [thread, key, record, chained(f"{thread}/{key}".encode(), record)],
        )
        return inserted.rowcount == 1

    def read(
        self, db: sqlite3.Connection, thread: str, checkpoint_id: str | None
    ) -> Stored | None:
        row = db.execute(
            "SELECT head, sum, chain FROM flow_threads WHERE thread = ?", [thread]
        ).fetchone()
        if row is None:
            return None
        text, head_sum, chain = row
        if chained(chain, text) != head_sum:
            raise errors.row_changed(thread, "the head")
        head = read_head(text)
        wanted = checkpoint_id or head.checkpoint
        checkpoints, reached = self._chain_to(db, thread, wanted)
        if wanted != head.checkpoint:
            return Stored(head=head, checkpoints=checkpoints)
        journal = _column(
            db,
            "SELECT record FROM flow_journal WHERE thread = ? ORDER BY number",
            thread,
        )
        for record in journal:
            reached = chained(reached, record)
        if reached != chain:
            raise errors.row_changed(thread, "a row")
        return Stored(
            head=head,
            checkpoints=checkpoints,
            journal=journal,
            answers=answers_of(db, thread),
        )

    def _chain_to(
        self, db: sqlite3.Connection, thread: str, wanted: str
    ) -> tuple[list[bytes], bytes]:
        """Return the checkpoints from a whole one to the wanted one, and its sum."""
        first, last = db.execute(
            "SELECT max(number) FILTER (WHERE whole), max(number)"
            " FROM flow_checkpoints WHERE thread = ?1 AND number <="
            " (SELECT number FROM flow_checkpoints WHERE thread = ?1 AND id = ?2)",
            [thread, wanted],
        ).fetchone()
        if last is None:
            raise errors.no_checkpoint(thread, wanted)
        rows = db.execute(
            "SELECT number, record, sum FROM flow_checkpoints"
            " WHERE thread = ? AND number BETWEEN ? AND ? ORDER BY number",
            [thread, (first or 0) - 1, last],
        ).fetchall()
        reached = rows.pop(0)[2] if first else thread.encode()
        if [number for number, _, _ in rows] != list(range(first or 0, last + 1)):
            raise errors.row_changed(thread, "a checkpoint")
        for number, record, checksum in rows:
            reached = chained(reached, record)
            if reached != checksum:
                raise errors.row_changed(thread, f"checkpoint row {number}")
        return [record for _, record, _ in rows], reached

    def checkpoints(
        self, db: sqlite3.Connection, thread: str, limit: int, before: str | None
    ) -> list[bytes]:
        return _column(
            db,
            "SELECT record FROM flow_checkpoints WHERE thread = ?1 AND (?2 IS NULL OR"
            " number < (SELECT number FROM flow_checkpoints"
            "  WHERE thread = ?1 AND id = ?2)) ORDER BY number DESC LIMIT ?3",
            *(thread, before, limit),
        )

    def heads(
        self,
        db: sqlite3.Connection,
        graph: str | None,
        status: ThreadStatus | None,
        limit: int,
        before: str | None,
    ) -> list[ThreadHead]:
        # An index of one status serves a query that names the status in its text.
        wanted = "TRUE" if status is None else f"status = '{status}'"
        rows = db.execute(
            "SELECT thread, head FROM flow_threads"  # noqa: S608
            f" WHERE {wanted} AND (?1 IS NULL OR graph = ?1) AND (?2 IS NULL OR"
            "  changed < (SELECT changed FROM flow_threads WHERE thread = ?2))"
            " ORDER BY changed DESC",
            (graph, before),
        )
        readable = filter(None, starmap(self._reader.read, rows))
        return list(islice(readable, limit))

    def unreadable(self, db: sqlite3.Connection) -> list[str]:
        rows = db.execute("SELECT thread, head FROM flow_threads")
        return [thread for thread, text in rows if not self._reader.read(thread, text)]

    def delete(self, db: sqlite3.Connection, thread: str) -> bool:
        row = db.execute(
            "SELECT token, owner FROM flow_threads WHERE thread = ?", [thread]
        ).fetchone()
        if row is None:
            return False
        if self._is_held(thread, *row):
            raise errors.thread_busy(thread)
        for table in _TABLES:
            db.execute(f"DELETE FROM {table} WHERE thread = ?", [thread])  # noqa: S608
        return True

    def _row(self, db: sqlite3.Connection, thread: str, columns: str) -> Any:
        row = db.execute(
            f"SELECT {columns} FROM flow_threads WHERE thread = ?",  # noqa: S608
            [thread],
        ).fetchone()
        if row is None:
            raise errors.no_thread(thread)
        return row


def answers_of(db: sqlite3.Connection, thread: str) -> list[bytes]:
    """Return the answers of a thread, each checked by its checksum."""
    rows = db.execute(
        "SELECT key, record, sum FROM flow_answers WHERE thread = ?", [thread]
    ).fetchall()
    for key, record, checksum in rows:
        if chained(f"{thread}/{key}".encode(), record) != checksum:
            raise errors.row_changed(thread, "an answer")
    return [record for _, record, _ in rows]


def answered_threads(db: sqlite3.Connection, graph: str) -> list[str]:
    """Return the paused threads of a graph that have an answer."""
    rows = db.execute(
        "SELECT DISTINCT thread FROM flow_answers CROSS JOIN flow_threads"
        " USING (thread) WHERE status = 'interrupted' AND graph = ?",
        [graph],
    )
    return [thread for (thread,) in rows]


def _latest(db: sqlite3.Connection, thread: str) -> str:
    """Return the id of the latest checkpoint of a thread."""
    query = "SELECT id FROM flow_checkpoints WHERE thread = ? ORDER BY number DESC"
    return str(db.execute(f"{query} LIMIT 1", [thread]).fetchone()[0])


def _column(db: sqlite3.Connection, query: str, *values: object) -> list[bytes]:
    rows: Iterable[tuple[bytes]] = db.execute(query, values)
    return [value for (value,) in rows]


def _last_changed(db: sqlite3.Connection) -> str:
    """Return the thread that changed last, whose place in the index may stay."""
    query = "SELECT thread FROM flow_threads ORDER BY changed DESC LIMIT 1"
    return str(db.execute(query).fetchone()[0])


def _next_change(db: sqlite3.Connection) -> int:
    [last] = db.execute("SELECT coalesce(max(changed), 0) FROM flow_threads").fetchone()
    return int(last) + 1
