"""Records in an SQLite file: they outlive the process and can be shared."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from .records import Records, ToolExecutionRecord
from .sqlite_file import SQLiteFile

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
CREATE INDEX IF NOT EXISTS tool_records_agent ON tool_records (agent_id, tool_name);
"""
_LOOK_EVERY = 100
_LOOK_ROWS = 1_000
_COLUMNS = ("call_id", "parent_id", "agent_id", "tool_name", "status")


class SQLiteRecords(Records):
    """Records in a file, shared by the processes that open it.

    A record is in the file when `add` returns; it survives a kill of the process.

    Args:
        path: The file; it is made if it is missing.
        keep_days: Days for which a record is stored; default 30. When it is reached the
            record is deleted as further ones are added, at most a thousand at once.
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
        busy_seconds: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._file = SQLiteFile(path, _SCHEMA, busy_seconds=busy_seconds)
        self._keep_seconds = keep_days * 86_400
        self._clock = clock

    def add(self, record: ToolExecutionRecord) -> None:
        values = [getattr(record, name) for name in _COLUMNS]
        with self._file.transaction() as database:
            added = database.execute(
                "INSERT INTO tool_records (call_id, parent_id, agent_id, tool_name,"
                " status, started_at, body) VALUES (?, ?, ?, ?, ?, ?, ?)",
                [*values, record.started_at.timestamp(), _written(record)],
            )
            if (added.lastrowid or 0) % _LOOK_EVERY == 0:
                # The oldest have the smallest numbers.
                database.execute(
                    "DELETE FROM tool_records WHERE number IN (SELECT number FROM"
                    " tool_records ORDER BY number LIMIT ?) AND started_at < ?",
                    [_LOOK_ROWS, self._clock() - self._keep_seconds],
                )

    def _newest(
        self, wanted: Mapping[str, str], since: datetime | None, limit: int | None
    ) -> list[ToolExecutionRecord]:
        tests = [f"{name} = ?" for name in wanted]
        values: list[str | float] = list(wanted.values())
        if since is not None:
            tests.append("started_at >= ?")
            values.append(since.timestamp())
        # Only names of columns stand in the text; the values are bound.
        where = f"WHERE {' AND '.join(tests)}" if tests else ""
        query = f"SELECT body FROM tool_records {where} ORDER BY number DESC LIMIT ?"  # noqa: S608
        with self._file.transaction() as database:
            rows: list[sqlite3.Row] = database.execute(
                query, [*values, -1 if limit is None else limit]
            ).fetchall()
        return [_read(body) for (body,) in rows]

    def close(self) -> None:
        """Close the file; the records stay in it."""
        self._file.close()


def _written(record: ToolExecutionRecord) -> str:
    values = record._asdict()
    values["usage"] = dict(record.usage)
    values["started_at"] = record.started_at.astimezone(UTC).isoformat()
    return json.dumps(values, ensure_ascii=False, allow_nan=False)


def _read(body: str) -> ToolExecutionRecord:
    values = json.loads(body)
    values["started_at"] = datetime.fromisoformat(values["started_at"])
    return ToolExecutionRecord(**values)
