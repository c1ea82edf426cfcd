"""The file `people.db`: people, passkeys, one-time links, sessions and failures.

No secret is in it: of the codes of links and the ids of sessions it has hashes alone,
and of passkeys the public keys.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time

from ..config.host_config import HostConfig
from ..config.state_file import StateFile, open_state_file

PEOPLE_FILE = "people.db"

_SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS people (
    id TEXT PRIMARY KEY,
    role TEXT NOT NULL,
    agents TEXT,
    issuer TEXT,
    subject TEXT,
    created_at REAL NOT NULL,
    UNIQUE (issuer, subject)
) STRICT;
CREATE TABLE IF NOT EXISTS passkeys (
    id BLOB PRIMARY KEY,
    person_id TEXT NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    public_key BLOB NOT NULL,
    uses INTEGER NOT NULL,
    created_at REAL NOT NULL,
    used_at REAL
) STRICT;
CREATE TABLE IF NOT EXISTS links (
    hash BLOB PRIMARY KEY,
    person_id TEXT,
    role TEXT NOT NULL,
    agents TEXT,
    local INTEGER NOT NULL,
    made_by TEXT,
    expires_at REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY,
    hash BLOB NOT NULL UNIQUE,
    person_id TEXT NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    address TEXT NOT NULL,
    created_at REAL NOT NULL,
    used_at REAL NOT NULL,
    fresh_at REAL NOT NULL,
    expires_at REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS session_keys (
    session TEXT PRIMARY KEY REFERENCES sessions (id) ON DELETE CASCADE,
    passkey BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS vouched (
    passkey BLOB PRIMARY KEY REFERENCES passkeys (id) ON DELETE CASCADE,
    voucher TEXT NOT NULL,
    made_at REAL NOT NULL,
    added INTEGER NOT NULL,
    told INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS votes (
    request_id TEXT NOT NULL,
    person_id TEXT NOT NULL,
    could_be TEXT NOT NULL,
    at REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS failures (
    key TEXT NOT NULL,
    at REAL NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS failures_by_key ON failures (key, at);
COMMIT;
"""


class PeopleFile(StateFile):
    """The SQLite file, which several processes may share.

    Args:
        path: The file, in an existing folder.
        clock: Returns seconds since 1970 (UTC).

    Raises:
        ConfigError: The file cannot be used.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time) -> None:
        self.clock = clock
        self._path = path
        self._turn = threading.Lock()
        file = open_state_file(path, lambda file: file.executescript(_SCHEMA))
        super().__init__(file, "the people")
        file.execute("PRAGMA foreign_keys = ON")

    def second_connection(self) -> PeopleFile:
        """Return another connection to the file. Raises ConfigError."""
        return PeopleFile(self._path, clock=self.clock)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write what the block writes at once, or nothing if it raises.

        Others with the file do not write meanwhile.

        Raises:
            StoreUnavailableError: The file cannot be written, or was removed.
        """
        with self._turn:
            self.run("BEGIN IMMEDIATE")
            try:
                yield
                self.run("COMMIT")
            except BaseException:
                self._file.rollback()
                raise


def open_people(config: HostConfig) -> PeopleFile:
    """Return the file of a configuration.

    Raises:
        ConfigError: No state folder is configured, or the file cannot be used.
    """
    return PeopleFile(config.state.folder_for("people") / PEOPLE_FILE)
