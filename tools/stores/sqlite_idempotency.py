"""Idempotency keys in an SQLite file: they survive a kill of the process."""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from toolcell.core import StoreUnavailableError, ToolResult
from toolcell.core.storage.processes import OwnerFile

from .idempotency import CallBody, Idempotency, KeyEntry, too_many_keys
from .sqlite_file import SQLiteFile

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS idempotency_keys (
    key TEXT PRIMARY KEY,
    body TEXT NOT NULL,
    state TEXT NOT NULL,
    owner TEXT NOT NULL,
    result TEXT,
    expires_at REAL,
    agent TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS idempotency_time (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    now REAL NOT NULL,
    boot TEXT NOT NULL,
    uptime REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS idempotency_agents (
    agent TEXT PRIMARY KEY,
    keys INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS idempotency_expiry ON idempotency_keys (expires_at);
"""
_AGENTS = (
    "CREATE INDEX IF NOT EXISTS idempotency_of_agent"
    " ON idempotency_keys (agent, state, expires_at)",
    """
CREATE TRIGGER IF NOT EXISTS idempotency_added AFTER INSERT ON idempotency_keys BEGIN
    INSERT INTO idempotency_agents VALUES (NEW.agent, 1, 0)
        ON CONFLICT DO UPDATE SET keys = keys + 1;
END""",
    """
CREATE TRIGGER IF NOT EXISTS idempotency_changed
AFTER UPDATE OF result ON idempotency_keys BEGIN
    UPDATE idempotency_agents SET bytes = bytes
        + coalesce(length(CAST(NEW.result AS BLOB)), 0)
        - coalesce(length(CAST(OLD.result AS BLOB)), 0)
        WHERE agent = NEW.agent;
END""",
    """
CREATE TRIGGER IF NOT EXISTS idempotency_deleted AFTER DELETE ON idempotency_keys BEGIN
    UPDATE idempotency_agents SET keys = keys - 1,
        bytes = bytes - coalesce(length(CAST(OLD.result AS BLOB)), 0)
        WHERE agent = OLD.agent;
    DELETE FROM idempotency_agents WHERE agent = OLD.agent AND keys = 0;
END""",
)
"""The index and triggers that count the keys and result bytes of each agent."""

_IS_COUNTED = "SELECT 1 FROM sqlite_schema WHERE name = 'idempotency_deleted'"
_COUNT_ALL = """
INSERT INTO idempotency_agents SELECT agent, count(*),
    total(length(CAST(result AS BLOB))) FROM idempotency_keys GROUP BY agent
"""
_OVER_EQUAL_PART = """
SELECT agent, bytes FROM idempotency_agents WHERE bytes > ?
ORDER BY bytes DESC LIMIT ?
"""
_OLDEST_RESULTS = """
SELECT key, length(CAST(result AS BLOB)) FROM idempotency_keys
WHERE agent = ? AND state = 'done' AND key <> ? ORDER BY expires_at LIMIT ?
"""
_DROP = "UPDATE idempotency_keys SET state = 'gone', result = NULL WHERE key = ?"
_DELETE_EXPIRED = """
DELETE FROM idempotency_keys WHERE key IN
    (SELECT key FROM idempotency_keys WHERE expires_at <= ?
     ORDER BY expires_at LIMIT ?)
"""
_FIRST_END = """
SELECT min(ends) FROM (
    SELECT min(expires_at) AS ends FROM idempotency_keys
        WHERE agent = ?1 AND state = 'done'
    UNION ALL SELECT min(expires_at) FROM idempotency_keys
        WHERE agent = ?1 AND state = 'gone'
    UNION ALL SELECT min(expires_at) FROM idempotency_keys
        WHERE agent = ?1 AND state = 'unknown')
"""
"""In one look at all states every key of the agent would be read."""

_DELETED_AT_ONCE = 100
"""A thousand would hold up other calls for tens of milliseconds."""

_DROPPED_AT_ONCE = 1000


def uptime() -> float:
    """Return the seconds since the machine was started, its sleep included on Linux."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def boot_id() -> str:
    """Return a name that differs after each start of the machine; empty if unknown."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class SQLiteIdempotency(Idempotency):
    """Idempotency keys in a file, shared by the processes that open it.

    Time is counted while the machine runs, by all processes alike, so that no key ends
    early when somebody sets the clock; while the machine is off no time passes.

    Keys survive a kill of the process. A key whose process died while it ran is *in
    doubt*; one whose call only waited for a person is free. The kernel knows which
    processes live: each one holds a lock on a small file beside `path`. Results are
    stored as they are, secrets included: protect the file like the results of the
    tools.

    Args:
        path: The file, on a local disk; it is made if it is missing.
        ttl_seconds: Seconds for which a result is stored; default a day. When it is
            reached the key is free again.
        max_entries: Keys of one agent; default 1,000,000, some 450 bytes each. When it
            is reached the agent's calls under new keys are refused; the error says when
            a key ends.
        max_bytes: Bytes of results; default 1 GiB. The file is larger: a result of 1
            KiB takes some 5 KiB of it. When it is reached the oldest of the agent that
            has most are dropped, but not a new one. Their keys stay: a repeated call
            fails and says that it ran, and a tool that may be repeated runs again.
        busy_seconds: Seconds to wait while another process writes; default 1. When it
            is reached StoreUnavailableError is raised.
        clock: Returns the seconds since the machine was started.

    Raises:
        StoreUnavailableError: The file cannot be opened.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        ttl_seconds: float = 86_400.0,
        max_entries: int = 1_000_000,
        max_bytes: int = 1024 * 1_048_576,
        busy_seconds: float = 1.0,
        clock: Callable[[], float] = uptime,
    ) -> None:
        super().__init__()
        self._file = SQLiteFile(
            path, _SCHEMA, busy_seconds=busy_seconds, migrate=_count_by_agent
        )
        self._ttl = ttl_seconds
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._clock = clock
        self._boot = boot_id()
        self._owner = OwnerFile(Path(path))
        dead = self._owner.dead_owners()
        self._expire_keys_of(dead)
        for owner in dead:
            # A running key of an owner without a file is in doubt as well.
            self._owner.remove(owner)

    def close(self) -> None:
        """Close the file; the keys stay in it."""
        self._file.close()
        self._owner.close()

    def park(self, keys: Iterable[str]) -> None:
        self._move(keys, "running", "parked")

    def unpark(self, keys: Iterable[str]) -> None:
        self._move(keys, "parked", "running")

    def _move(self, keys: Iterable[str], before: str, after: str) -> None:
        with self._file.transaction() as database:
            for key in keys:
                moved = database.execute(
                    "UPDATE idempotency_keys SET state = ?"
                    " WHERE key = ? AND owner = ? AND state = ?",
                    [after, _hash(key), self._owner.name, before],
                )
                if moved.rowcount != 1:
                    raise StoreUnavailableError(
                        "the id of this call was taken over meanwhile",
                        hint="look what became of the call; nothing was done here",
                    )

    def _expire_keys_of(self, dead: list[str]) -> None:
        """Begin the time to live of keys in doubt, which may never be claimed again."""
        if not dead:
            return
        with self._file.transaction() as database:
            database.executemany(
                "DELETE FROM idempotency_keys WHERE state = 'parked' AND owner = ?",
                [(name,) for name in dead],
            )
            database.executemany(
                "UPDATE idempotency_keys SET state = 'unknown', expires_at = ?"
                " WHERE state = 'running' AND owner = ?",
                [(self._now(database) + self._ttl, name) for name in dead],
            )

    def _claim_if_free(
        self, key: str, body: CallBody, repeatable: bool
    ) -> KeyEntry | None:
        hashed, hashed_key, wait = body.hashed, _hash(key), None
        with self._file.transaction() as database:
            now = self._now(database)
            database.execute(_DELETE_EXPIRED, [now, _DELETED_AT_ONCE])
            row = database.execute(
                "SELECT expires_at <= ?, body, state, owner, result"
                " FROM idempotency_keys WHERE key = ?",
                [now, hashed_key],
            ).fetchone()
            is_free = row is None or row[0]
            entry = None if is_free else self._entry(hashed, *row[1:])
            if entry is not None and not (
                repeatable and entry.state in ("unknown", "gone")
            ):
                if entry.state == "unknown":
                    # The time to live begins when its run was found dead.
                    database.execute(
                        "UPDATE idempotency_keys SET state = 'unknown', expires_at = ?"
                        " WHERE key = ? AND expires_at IS NULL",
                        [now + self._ttl, hashed_key],
                    )
                return entry
            if row is None:
                wait = self._wait_for_room(database, body.agent, now)
            else:
                database.execute(
                    "DELETE FROM idempotency_keys WHERE key = ?", [hashed_key]
                )
            if wait is None:
                database.execute(
                    "INSERT INTO idempotency_keys"
                    " VALUES (?, ?, 'running', ?, NULL, NULL, ?)",
                    [hashed_key, hashed, self._owner.name, body.agent],
                )
        if wait is not None:
            raise too_many_keys(self._max_entries, wait)
        return None

    def _wait_for_room(
        self, database: sqlite3.Connection, agent: str, now: float
    ) -> float | None:
        """Return the seconds until an agent may have another key; None: it may now."""
        row = database.execute(
            "SELECT keys FROM idempotency_agents WHERE agent = ?", [agent]
        ).fetchone()
        if row is None or row[0] < self._max_entries:
            return None
        [ends] = database.execute(_FIRST_END, [agent]).fetchone()
        if ends is None:
            return 0.0
        # One that is over and not yet deleted takes no room.
        return float(ends) - now if ends > now else None

    def _now(self, database: sqlite3.Connection) -> float:
        """Return the time of the file, which no clock that is set moves."""
        uptime = self._clock()
        row = database.execute("SELECT now, boot, uptime FROM idempotency_time")
        # Files of before have times of the day.
        now, boot, before = row.fetchone() or (time.time(), self._boot, uptime)
        if boot == self._boot:
            now += max(0.0, uptime - before)
        database.execute(
            "INSERT OR REPLACE INTO idempotency_time VALUES (1, ?, ?, ?)",
            [now, self._boot, uptime],
        )
        return float(now)

    def _entry(
        self, asked: str, body: str, state: str, owner: str, result: str | None
    ) -> KeyEntry | None:
        """Return the entry of a row; None: its run waited, and will never begin."""
        same = body == asked
        if state == "done" and result is not None:
            done = ToolResult.model_validate_json(result)
            return KeyEntry(same=same, state="done", result=done)
        if state == "gone":
            return KeyEntry(same=same, state="gone")
        # A running key of this process that is claimed again has no run any more.
        others = owner != self._owner.name
        life = self._owner.state_of(owner) if others else "dead"
        if state in ("running", "parked") and life == "alive":
            return KeyEntry(same=same, state="running")
        if state == "parked" and life == "dead":
            return None
        return KeyEntry(same=same, state="unknown")

    def _store_result(self, key: str, body: CallBody, result: ToolResult) -> None:
        text = result.model_dump_json(exclude={"usage", "remaining", "parts"})
        self._set(key, "done", text)

    def _make_room(self, database: sqlite3.Connection, new: str, now: float) -> None:
        """Drop results where most are, if all are too large, but not a new one.

        An agent whose results fit in an equal part of the room loses none.
        """
        sizes = ("page_count", "freelist_count", "page_size")
        pages, free, size = (
            database.execute(f"PRAGMA {name}").fetchone()[0] for name in sizes
        )
        # The pages hold the results: the sum of all agents is rarely needed.
        if (pages - free) * size <= self._max_bytes:
            return
        database.execute(_DELETE_EXPIRED, [now, _DELETED_AT_ONCE])
        agents, stored = database.execute(
            "SELECT count(*), total(bytes) FROM idempotency_agents"
        ).fetchone()
        excess = stored - self._max_bytes
        if excess <= 0:
            return
        part = self._max_bytes / agents
        over = database.execute(_OVER_EQUAL_PART, [part, _DROPPED_AT_ONCE]).fetchall()
        for agent, held in over:
            excess -= _drop_oldest(database, agent, new, min(excess, held - part))
            if excess <= 0:
                return

    def _mark_unknown(self, key: str, body: CallBody) -> None:
        self._set(key, "unknown", None)

    def _set(self, key: str, state: str, result: str | None) -> None:
        hashed = _hash(key)
        with self._file.transaction() as database:
            now = self._now(database)
            database.execute(
                "UPDATE idempotency_keys SET state = ?, result = ?, expires_at = ?"
                " WHERE key = ? AND owner = ?",
                [state, result, now + self._ttl, hashed, self._owner.name],
            )
            if result is not None:
                self._make_room(database, hashed, now)

    def _delete(self, key: str, body: CallBody) -> None:
        with self._file.transaction() as database:
            database.execute(
                "DELETE FROM idempotency_keys WHERE key = ? AND owner = ?",
                [_hash(key), self._owner.name],
            )


def _drop_oldest(
    database: sqlite3.Connection, agent: str, new: str, excess: float
) -> int:
    """Drop results of an agent, but not a new one; return the bytes that are free."""
    free, keys = 0, []
    for key, size in database.execute(_OLDEST_RESULTS, [agent, new, _DROPPED_AT_ONCE]):
        free += size
        keys.append((key,))
        if free >= excess:
            break
    database.executemany(_DROP, keys)
    return free


def _count_by_agent(database: sqlite3.Connection) -> None:
    """Let the keys of each agent be counted.

    Those of an older file are of one that is no text, and so of no agent that asks.
    """
    if database.execute(_IS_COUNTED).fetchone():
        return
    database.execute("BEGIN IMMEDIATE")
    columns = database.execute("PRAGMA table_info(idempotency_keys)").fetchall()
    if "agent" not in [column[1] for column in columns]:
        database.execute(
            "ALTER TABLE idempotency_keys ADD agent TEXT NOT NULL DEFAULT x''"
        )
        database.execute(_COUNT_ALL)
    for each in _AGENTS:
        database.execute(each)
    database.execute("COMMIT")


def _hash(text: str) -> str:
    """Return the form in the file of a text that holds arguments."""
    return hashlib.sha256(text.encode()).hexdigest()
