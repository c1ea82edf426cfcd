"""One SQLite file behind records and idempotency keys."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from toolcell.core import StoreUnavailableError
from toolcell.core.storage.sqlite import open_sqlite

_log = logging.getLogger(__name__)


class SQLiteFile:
    """A connection that threads share in turns; each use is one transaction.

    Statements take microseconds, so they run where they are called: a hop to a
    thread would cost more, and could be cancelled half-way.
    """

    def __init__(
        self,
        path: str | Path,
        schema: str,
        *,
        busy_seconds: float = 1.0,
        migrate: Callable[[sqlite3.Connection], object] = lambda database: None,
    ) -> None:
        def prepare(database: sqlite3.Connection) -> None:
            database.executescript(schema)
            migrate(database)

        self._path = str(path)
        self._turn = threading.Lock()
        try:
            self._connection = open_sqlite(
                path,
                prepare,
                synchronous="NORMAL",
                busy_seconds=busy_seconds,
            )
        except (OSError, sqlite3.Error) as error:
            raise self._unavailable(error) from error

    @contextmanager
    def transaction(
        self, kind: Literal["DEFERRED", "IMMEDIATE"] = "IMMEDIATE"
    ) -> Iterator[sqlite3.Connection]:
        """Hold the write lock; commit at the end, roll back on an error.

        Args:
            kind: `DEFERRED` to read only: other processes may write meanwhile.

        Raises:
            StoreUnavailableError: SQLite failed, or another process held the lock.
        """
        with self._turn:
            try:
                self._connection.begin(kind)
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise self._unavailable(error) from error
                raise

    def close(self) -> None:
        """Close the connection; what a thread has begun is ended first."""
        with self._turn:
            self._connection.close()

    def _unavailable(self, error: Exception) -> StoreUnavailableError:
        # A model may read this: the path is for the log.
        _log.error("%s: %s", self._path, error)
        return StoreUnavailableError(
            "the state of calls cannot be read or written",
            hint="the log of toolcell.tools says which file, and why",
        )
