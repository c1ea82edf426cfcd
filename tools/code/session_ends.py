"""Keeps why sessions of code ended by themselves until a result has said it."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import suppress
from pathlib import Path

from toolcell.core import StoreUnavailableError
from toolcell.core.storage.processes import OwnerFile

from ..stores.sqlite_file import SQLiteFile

Key = tuple[str | None, str]
"""The agent that owns a session, and the client's name of it."""

HOST_ENDED = "its host ended"
_MAX_ENDS = 1024
"""Ends of one agent in memory that wait to be said; then its oldest is forgotten."""

_MAX_ROWS = 10_000
"""The same for a file, whose rows of open sessions count, too."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS session_ends (
    number INTEGER PRIMARY KEY,
    agent TEXT NOT NULL,
    key TEXT NOT NULL,
    owner TEXT NOT NULL,
    why TEXT,
    UNIQUE (key, owner)
);
CREATE INDEX IF NOT EXISTS session_ends_of_agent ON session_ends (agent, number);
"""


class SessionEnds:
    """The ends of sessions in this process."""

    def __init__(self) -> None:
        self._whys: dict[str | None, dict[str, str]] = {}

    def why(self, key: Key) -> str:
        """Return why the last session of a key ended; empty: there is nothing to say.

        Raises:
            StoreUnavailableError: It cannot be read.
        """
        agent, session = key
        return self._whys.get(agent, {}).get(session, "")

    def note_open(self, key: Key) -> None:
        """Note that a key has a session, which knows why the one before it ended.

        Raises:
            StoreUnavailableError: It cannot be written.
        """
        self.note_end(key, "")

    def note_end(self, key: Key, why: str) -> None:
        """Note the end of a session; `why` is empty if its client closed it."""
        agent, session = key
        whys = self._whys.pop(agent, {})
        whys.pop(session, None)
        if why:
            whys[session] = why
        if len(whys) > _MAX_ENDS:
            del whys[next(iter(whys))]
        if whys:
            self._whys[agent] = whys


class SQLiteSessionEnds(SessionEnds):
    """The ends of sessions in a file, which say it after a restart of the host, too.

    Sessions that are open are in the file as well, by the hash of their key. The kernel
    knows whose processes live: each one holds a lock on a small file beside `path`.

    Args:
        path: The file, on a local disk; it is made if it is missing.
        busy_seconds: Seconds to wait while another process writes; default 1. When it
            is reached StoreUnavailableError is raised.

    Raises:
        StoreUnavailableError: The file cannot be opened.
    """

    def __init__(self, path: str | Path, *, busy_seconds: float = 1.0) -> None:
        super().__init__()
        self._file = SQLiteFile(path, _SCHEMA, busy_seconds=busy_seconds)
        self._owner = OwnerFile(Path(path))
        for owner in self._owner.dead_owners():
            self._end_all_of(owner)
            self._owner.remove(owner)

    def close(self) -> None:
        """Close the file, in which all sessions of this process end."""
        with suppress(StoreUnavailableError):
            self._end_all_of(self._owner.name)
        self._file.close()
        self._owner.close()

    def why(self, key: Key) -> str:
        with self._file.transaction("DEFERRED") as database:
            rows = database.execute(
                "SELECT owner, why FROM session_ends WHERE key = ?"
                " ORDER BY number DESC",
                [_hash(key)],
            ).fetchall()
        for owner, why in rows:
            if why is not None:
                return str(why)
            others = owner != self._owner.name
            if others and self._owner.state_of(owner) != "alive":
                self._end_all_of(owner)
                return HOST_ENDED
        return ""

    def note_open(self, key: Key) -> None:
        with self._file.transaction() as database:
            database.execute(
                "DELETE FROM session_ends WHERE key = ? AND why IS NOT NULL",
                [_hash(key)],
            )
            self._put(database, key, None)

    def note_end(self, key: Key, why: str) -> None:
        # Without it the session counts as open until its host ends.
        with suppress(StoreUnavailableError), self._file.transaction() as database:
            if why:
                self._put(database, key, why)
            else:
                database.execute(
                    "DELETE FROM session_ends WHERE key = ? AND owner = ?",
                    [_hash(key), self._owner.name],
                )

    def _put(self, database: sqlite3.Connection, key: Key, why: str | None) -> None:
        agent = _hash(key[0])
        database.execute(
            "INSERT OR REPLACE INTO session_ends (agent, key, owner, why)"
            " VALUES (?, ?, ?, ?)",
            [agent, _hash(key), self._owner.name, why],
        )
        database.execute(
            "DELETE FROM session_ends WHERE agent = ? AND number <="
            " (SELECT number FROM session_ends WHERE agent = ?"
            " ORDER BY number DESC LIMIT 1 OFFSET ?)",
            [agent, agent, _MAX_ROWS],
        )

    def _end_all_of(self, owner: str) -> None:
        with self._file.transaction() as database:
            database.execute(
                "UPDATE session_ends SET why = ? WHERE owner = ? AND why IS NULL",
                [HOST_ENDED, owner],
            )


def _hash(name: Key | str | None) -> str:
    return hashlib.sha256(json.dumps(name).encode()).hexdigest()
