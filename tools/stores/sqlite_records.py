"""Records in an SQLite file: they outlive the process and can be shared."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from datetime import datetime
from itertools import islice
from pathlib import Path

from toolcell.core import StoreUnavailableError
from toolcell.core.storage.sqlite import FORMAT

from .record import NEVER_MADE, NumberedRecord, ToolExecutionRecord
from .record_filter import RecordFilter
from .records import (
    HOUR,
    Records,
    UsageHour,
    usage_of,
    written_record,
)
from .sqlite_file import SQLiteFile
from .sqlite_search import (
    BYTES_AT_ONCE,
    SEARCH_SCHEMA,
    TAKEN_AT_ONCE,
    forget,
    newest,
    take_in,
    unindexed,
)

_log = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tool_records (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    call_id TEXT NOT NULL,
    parent_id TEXT,
    agent_id TEXT,
    tool_name TEXT NOT NULL,
    status TEXT NOT NULL,
    started_at REAL NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS tool_records_call ON tool_records (call_id);
CREATE INDEX IF NOT EXISTS tool_records_parent ON tool_records (parent_id)
    WHERE parent_id IS NOT NULL;
DROP INDEX IF EXISTS tool_records_agent;
DROP INDEX IF EXISTS tool_records_of_agent;
DROP INDEX IF EXISTS tool_records_tool;
DROP INDEX IF EXISTS tool_records_status;
CREATE TABLE IF NOT EXISTS tool_usage (
    hour INTEGER NOT NULL,
    agent_id TEXT NOT NULL,
    calls INTEGER NOT NULL,
    denied INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    wall_ms INTEGER NOT NULL,
    cpu_ms INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    usd REAL NOT NULL,
    PRIMARY KEY (hour, agent_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tool_refused (
    number INTEGER PRIMARY KEY,
    agent_id TEXT NOT NULL,
    bytes INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS tool_refused_of_agent ON tool_refused (agent_id);
CREATE TABLE IF NOT EXISTS tool_refused_bytes (
    agent_id TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS tool_refused_added AFTER INSERT ON tool_refused BEGIN
    INSERT INTO tool_refused_bytes VALUES (NEW.agent_id, NEW.bytes)
        ON CONFLICT DO UPDATE SET bytes = bytes + NEW.bytes;
END;
CREATE TRIGGER IF NOT EXISTS tool_refused_deleted AFTER DELETE ON tool_refused BEGIN
    UPDATE tool_refused_bytes SET bytes = bytes - OLD.bytes
        WHERE agent_id = OLD.agent_id;
END;
CREATE TRIGGER IF NOT EXISTS tool_records_deleted AFTER DELETE ON tool_records BEGIN
    DELETE FROM tool_refused WHERE number = OLD.number;
END;
"""
_INSERT = """
INSERT INTO tool_records
    (call_id, parent_id, agent_id, tool_name, status, started_at, body)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_COUNT = """
INSERT INTO tool_usage VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
ON CONFLICT DO UPDATE SET calls = calls + ?3, denied = denied + ?4,
    failed = failed + ?5, wall_ms = wall_ms + ?6, cpu_ms = cpu_ms + ?7,
    bytes = bytes + ?8, tokens = tokens + ?9, usd = usd + ?10
"""

_REFUSED = "INSERT INTO tool_refused VALUES (?, ?, ?)"
_DELETE_REFUSED = """
DELETE FROM tool_records WHERE number IN
    (SELECT number FROM tool_refused WHERE agent_id = ? ORDER BY number LIMIT ?)
"""

_LOOK_EVERY = 100
_REFUSED_AT_ONCE = 100
_LOOK_ROWS = 1_000
_INDEXED_AT_ONCE = 100
_AGAIN_SECONDS = 1.0
_COLUMNS = ("call_id", "parent_id", "agent_id", "tool_name", "status")


class SQLiteRecords(Records):
    """Records in a file, shared by the processes that open it.

    A record is in the file when `add` returns; it survives a kill of the process.

    Args:
        path: The file; it is made if it is missing.
        keep_days: Days for which a record is stored; default 30. When it is reached the
            record is deleted as further ones are added, at most a thousand at once,
            and so are the sums of its hour.
        refused_mib: MiB of records of one agent's calls that were never made; default
            64. When it is reached the oldest of these are deleted, a hundred for each
            new one; what ran stays.
        busy_seconds: Seconds to wait while another process writes; default 1. When it
            is reached StoreUnavailableError is raised.
        clock: Returns Unix time in seconds.

    Raises:
        StoreUnavailableError: The file cannot be opened.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        keep_days: float = 30.0,
        refused_mib: float = 64.0,
        busy_seconds: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        schema = _SCHEMA + SEARCH_SCHEMA
        self._file = SQLiteFile(path, schema, busy_seconds=busy_seconds)
        # A search that takes long keeps no call from its record.
        self._reading = SQLiteFile(path, "", busy_seconds=busy_seconds)
        self._keep_seconds = keep_days * 86_400
        self._refused_bytes = refused_mib * 1_048_576
        self._clock = clock
        self._waiting = 0
        self._closing = threading.Event()
        self._indexing = threading.Thread(
            target=self._take_in_rest, name="toolcell records index", daemon=True
        )
        with self._reading.transaction("DEFERRED") as database:
            rest = unindexed(database)
        if rest > TAKEN_AT_ONCE:
            _log.info("%s: %s records are taken into the index of searches", path, rest)
            self._indexing.start()

    def add(self, record: ToolExecutionRecord) -> None:
        values = [getattr(record, name) for name in _COLUMNS]
        body = written_record(record)
        with self._file.transaction() as database:
            started = record.started_at.timestamp()
            added = database.execute(_INSERT, [*values, started, body])
            number = added.lastrowid or 0
            self._waiting += len(body)
            if number % TAKEN_AT_ONCE == 0 or self._waiting >= BYTES_AT_ONCE:
                take_in(database, 2 * TAKEN_AT_ONCE)
                self._waiting = 0
            database.execute(_COUNT, usage_of(record))
            if record.verdict in NEVER_MADE:
                agent, size = record.agent_id or "", len(body.encode())
                self._bound_refused(database, number, agent, size)
            if number % _LOOK_EVERY == 0:
                self._forget(database, self._clock() - self._keep_seconds)

    def _bound_refused(
        self, database: sqlite3.Connection, number: int, agent: str, size: int
    ) -> None:
        """Count a record of a call that was never made; delete the agent's oldest."""
        database.execute(_REFUSED, [number, agent, size])
        [stored] = database.execute(
            "SELECT bytes FROM tool_refused_bytes WHERE agent_id = ?", [agent]
        ).fetchone()
        if stored > self._refused_bytes:
            database.execute(_DELETE_REFUSED, [agent, _REFUSED_AT_ONCE])

    def check(self) -> None:
        with self._file.transaction() as database:
            # A damaged page refuses a record, which is not kept.
            database.execute("SAVEPOINT tried")
            tried = database.execute(_INSERT, ["", "", "", "", "", 0.0, ""])
            database.execute(_COUNT, [0, "", *[0] * 8])
            database.execute(_REFUSED, [tried.lastrowid, "", 0])
            database.execute("ROLLBACK TO tried")
            # A page is written as it is, which a full disk refuses.
            database.execute(f"PRAGMA user_version = {FORMAT}")

    def _forget(self, database: sqlite3.Connection, before: float) -> None:
        # The oldest have the smallest numbers.
        database.execute(
            "DELETE FROM tool_records WHERE number IN (SELECT number FROM"
            " tool_records ORDER BY number LIMIT ?) AND started_at < ?",
            [_LOOK_ROWS, before],
        )
        database.execute("DELETE FROM tool_usage WHERE hour < ?", [before - HOUR])
        forget(database, before - HOUR)

    def _take_in_rest(self) -> None:
        """Take records of a file of before into the index, as others let it."""
        pause = 0.0
        while not self._closing.wait(pause):
            start = time.monotonic()
            try:
                with self._file.transaction() as database:
                    take_in(database, _INDEXED_AT_ONCE)
                    if unindexed(database) <= TAKEN_AT_ONCE:
                        _log.info("the index of searches has all records")
                        return
            except StoreUnavailableError:
                pause = _AGAIN_SECONDS
                continue
            # As long as it took: calls write their records meanwhile.
            pause = time.monotonic() - start

    def _newest(
        self, wanted: RecordFilter, before: int | None, limit: int | None
    ) -> list[NumberedRecord]:
        with self._reading.transaction("DEFERRED") as database:
            return list(islice(newest(database, wanted, before), limit))

    def usage_hours(
        self, *, since: datetime, agent_id: str | None = None
    ) -> list[UsageHour]:
        with self._reading.transaction("DEFERRED") as database:
            rows = database.execute(
                "SELECT * FROM tool_usage WHERE hour > ?"
                " AND (agent_id = ? OR ? IS NULL) ORDER BY hour, agent_id",
                [since.timestamp() - HOUR, agent_id, agent_id],
            ).fetchall()
        return list(map(UsageHour._make, rows))

    def close(self) -> None:
        """Close the file; the records stay in it."""
        self._closing.set()
        if self._indexing.is_alive():
            self._indexing.join()
        self._reading.close()
        self._file.close()
