"""Idempotency keys in an SQLite file: they survive a kill of the process."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from toolcell.core import OwnerFile, ToolResult

from .idempotency import Body, Entry, Idempotency
from .sqlite_file import SQLiteFile

_SCHEMA = """
CREATE TABLE IF NOT EXISTS idempotency_keys (
    key TEXT PRIMARY KEY,
    body TEXT NOT NULL,
    state TEXT NOT NULL,
    owner TEXT NOT NULL,
    result TEXT,
    expires_at REAL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS idempotency_expiry ON idempotency_keys (expires_at);
"""


class SQLiteIdempotency(Idempotency):
    """Keys in a file, shared by the processes that open it.

    A key whose process died while it ran is *in doubt*. Whether a process lives
    is asked of the kernel: each one holds a lock on a small file beside `path`.
    Results are kept as they are, secrets included: give the file the rights of
    what the tools return.

    Args:
        path: The file, on a local disk; it is made if it is missing.
        ttl_seconds: How long a result is handed out. When it is reached the key is
            free again.
        busy_seconds: How long to wait while another process writes. When it is
            reached StoreUnavailableError is raised.
        clock: Returns Unix time in seconds.

    Raises:
        StoreUnavailableError: The file cannot be opened.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        ttl_seconds: float = 86_400.0,
        busy_seconds: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._file = SQLiteFile(path, _SCHEMA, busy_seconds=busy_seconds)
        self._ttl = ttl_seconds
        self._clock = clock
        self._owner = OwnerFile(Path(path))
        for owner in self._owner.left():
            # A running key of an owner without a file is in doubt as well.
            self._owner.remove(owner)

    def close(self) -> None:
        """Close the file; the keys stay in it."""
        self._file.close()
        self._owner.close()

    def _take(self, key: str, body: Body, repeatable: bool) -> Entry | None:
        now, hashed = self._clock(), _hash(body.text)
        with self._file.transaction() as database:
            database.execute(
                "DELETE FROM idempotency_keys WHERE expires_at <= ?", [now]
            )
            row = database.execute(
                "SELECT body, state, owner, result FROM idempotency_keys WHERE key = ?",
                [_hash(key)],
            ).fetchone()
            entry = None if row is None else self._entry(hashed, *row)
            if entry is not None and not (repeatable and entry.state == "unknown"):
                if entry.state == "unknown":
                    # From when its run was found dead, it is kept as long as others.
                    database.execute(
                        "UPDATE idempotency_keys SET state = 'unknown', expires_at = ?"
                        " WHERE key = ? AND expires_at IS NULL",
                        [now + self._ttl, _hash(key)],
                    )
                return entry
            database.execute(
                "INSERT OR REPLACE INTO idempotency_keys VALUES (?, ?, ?, ?, ?, NULL)",
                [_hash(key), hashed, "running", self._owner.name, None],
            )
            return None

    def _entry(
        self, asked: str, body: str, state: str, owner: str, result: str | None
    ) -> Entry:
        same = body == asked
        if state == "done" and result is not None:
            done = ToolResult.model_validate_json(result)
            return Entry(same=same, state="done", result=done)
        # A running key of our own that is asked for has no run any more.
        others = owner != self._owner.name
        if state == "running" and others and self._owner.sees(owner) == "alive":
            return Entry(same=same, state="running")
        return Entry(same=same, state="unknown")

    def _keep(self, key: str, body: Body, result: ToolResult) -> None:
        told = result.model_dump_json(exclude={"usage", "remaining"})
        self._set(key, "done", told)

    def _suspect(self, key: str, body: Body) -> None:
        self._set(key, "unknown", None)

    def _set(self, key: str, state: str, result: str | None) -> None:
        with self._file.transaction() as database:
            database.execute(
                "UPDATE idempotency_keys SET state = ?, result = ?, expires_at = ?"
                " WHERE key = ? AND owner = ?",
                [
                    state,
                    result,
                    self._clock() + self._ttl,
                    _hash(key),
                    self._owner.name,
                ],
            )

    def _drop(self, key: str, body: Body) -> None:
        with self._file.transaction() as database:
            database.execute(
                "DELETE FROM idempotency_keys WHERE key = ? AND owner = ?",
                [_hash(key), self._owner.name],
            )


def _hash(text: str) -> str:
    """Return what stands in the file for a text that holds arguments."""
    return hashlib.sha256(text.encode()).hexdigest()
