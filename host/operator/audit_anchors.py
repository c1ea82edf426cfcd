"""Heads of the audit log that people kept, to check the log against."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, NamedTuple, Self

from toolcell.core import StoreUnavailableError
from toolcell.guard import AuditHead

from ..config.state_file import open_state_file

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADS_FILE = "heads.db"

MAX_HEADS = 1_000
"""Heads that are kept. When it is reached the one that was kept first is dropped."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS heads (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    seq INTEGER NOT NULL,
    hash TEXT NOT NULL,
    kept_at REAL NOT NULL,
    kept_by TEXT NOT NULL
)
"""


class KeptHead(NamedTuple):
    """A head of the log, as it was at a time."""

    head: AuditHead
    kept_at: float
    """Seconds since 1970 (UTC)."""

    kept_by: str
    """The name of the person."""


class HeadFile:
    """Heads in an SQLite file, which several processes share.

    Whoever can write the log and this file can forge both. A head is proof only where
    they cannot reach it: copy its text to another place as well.

    Args:
        path: The file, in an existing folder.
        clock: Returns seconds since 1970 (UTC).

    Raises:
        ConfigError: The file cannot be used.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time) -> None:
        self._clock = clock
        self._file = open_state_file(path, lambda file: file.execute(_SCHEMA))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def keep(self, head: AuditHead, *, by: str) -> KeptHead:
        """Keep a head; return it.

        Raises:
            StoreUnavailableError: The file cannot be written.
        """
        kept = KeptHead(head, self._clock(), by)
        with self._used() as file:
            file.execute(
                "INSERT INTO heads (seq, hash, kept_at, kept_by) VALUES (?, ?, ?, ?)",
                (*head, kept.kept_at, by),
            )
            file.execute(
                "DELETE FROM heads WHERE number <= (SELECT max(number) FROM heads) - ?",
                (MAX_HEADS,),
            )
        return kept

    def all(self) -> list[KeptHead]:
        """Return the heads, the newest first.

        Raises:
            StoreUnavailableError: The file cannot be read.
        """
        with self._used() as file:
            rows = file.execute(
                "SELECT seq, hash, kept_at, kept_by FROM heads ORDER BY number DESC"
            ).fetchall()
        return [
            KeptHead(AuditHead(seq, text), kept_at, by)
            for seq, text, kept_at, by in rows
        ]

    @contextmanager
    def _used(self) -> Iterator[sqlite3.Connection]:
        try:
            self._file.check_place()
            yield self._file
        except sqlite3.Error as error:
            raise StoreUnavailableError(f"the kept heads: {error}") from error
