"""The file of an SQLite store: opened, locked, and one transaction at a time.

Each operation is one transaction that takes the write lock first, on a thread of
its own. A committed transaction survives SIGKILL of any process; power loss may take
the last ones (`synchronous=NORMAL`), and leaves the file whole. The file must not lie
on a network file system.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from toolcell.core import ConfigError, StoreUnavailableError
from toolcell.core.storage.processes import ForkAware, OwnerFile, awaited_lock
from toolcell.core.storage.sqlite import open_sqlite

_T = TypeVar("_T")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS accounts (
    key TEXT PRIMARY KEY, used INT NOT NULL, held INT NOT NULL, forget_at INT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS hits (
    key TEXT, at INT, calls INT NOT NULL, forget_at INT NOT NULL, PRIMARY KEY (key, at)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS buckets (
    key TEXT PRIMARY KEY, full_at INT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS holds (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, expires INT NOT NULL,
    parts TEXT NOT NULL, charged TEXT
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS holds_by_end ON holds (expires);
"""


class CounterFile(ForkAware):
    """A file of counters that processes share, each with its own lease.

    Args:
        path: The file.
        deadline: Seconds to wait for other processes' transactions. When it is reached
            the operation fails as `store_unavailable`.

    Raises:
        ConfigError: The file cannot be opened, or a newer toolcell wrote it.
    """

    def __init__(self, path: Path, deadline: float) -> None:
        super().__init__()
        self._path = path
        self._deadline = deadline
        self._lock = awaited_lock()
        self._failed_at = 0.0
        self._buried: list[str] = []
        """Dead owners of which a transaction ended all holds."""

        # Connections of a parent process: they must not be touched after a fork.
        self._inherited: list[sqlite3.Connection] = []
        # One thread for each loop: SQLite serves one writer at a time.
        self._turn = anyio.lowlevel.RunVar[anyio.CapacityLimiter](f"turn-{id(self)}")
        self._open()

    async def aclose(self) -> None:
        """Close the file; open holds expire with the process or at their end."""
        if self._is_inherited:
            # A forked process drops its copy, and leaves the rest to its parent.
            self._owner.close()
            return
        with self._lock:
            holds = True
            with suppress(sqlite3.Error):
                holds = self._owner.name in self._owners()
            self._db.close()
            self._owner.close(holds=holds)

    def _open(self) -> None:
        try:
            self._db = open_sqlite(
                self._path,
                lambda db: db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;"),
                synchronous="NORMAL",
                busy_seconds=self._deadline,
            )
            self._owner = OwnerFile(self._path)
            # The dead first: one that dies after that may leave holds until then.
            dead = self._owner.dead_owners()
            holding = self._owners()
            for owner in dead:
                if owner not in holding:
                    self._owner.remove(owner)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"the guard's store {self._path}: {error}",
                hint="give a SQLite file that this user may write, on a disk with room",
            ) from error

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        try:
            turn = self._turn.get()
        except LookupError:
            turn = anyio.CapacityLimiter(1)
            self._turn.set(turn)
        asked_at = time.monotonic()
        return await anyio.to_thread.run_sync(
            self._transact, work, asked_at, limiter=turn
        )

    def _transact(self, work: Callable[[], _T], asked_at: float) -> _T:
        self._follow_fork()
        if not self._lock.acquire(timeout=self._deadline):
            raise StoreUnavailableError("the store is busy")
        try:
            # A caller that waited through another one's deadline does not wait again.
            if self._failed_at > asked_at:
                raise StoreUnavailableError("the store is locked")
            return self._as_one(work)
        except (OSError, sqlite3.Error) as error:
            self._failed_at = time.monotonic()
            raise StoreUnavailableError(f"the store: {error}") from error
        finally:
            self._lock.release()

    def _renew(self) -> None:
        parents = self._owner
        # It may have been held during the fork, and would stay held.
        self._lock = awaited_lock()
        self._inherited.append(self._db)
        self._open()
        parents.close()

    def _as_one(self, work: Callable[[], _T]) -> _T:
        self._db.begin()
        self._buried = []
        try:
            # Another process that reads a hold must find the lease of its owner.
            self._owner.restore()
            answer = work()
            self._db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise
        for owner in self._buried:
            self._owner.remove(owner)
        return answer

    def _owners(self) -> set[str]:
        """Return the owners of open holds."""
        rows = self._db.execute(
            "SELECT DISTINCT owner FROM holds WHERE charged IS NULL"
        )
        return {owner for (owner,) in rows.fetchall()}
