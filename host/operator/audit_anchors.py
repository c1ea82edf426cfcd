"""Heads of the audit log that people kept, to check the log against."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import time
from typing import NamedTuple

from toolcell.guard import AuditHead

from ..config.state_file import StateFile, open_state_file

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


class HeadFile(StateFile):
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
        file = open_state_file(path, lambda file: file.execute(_SCHEMA))
        super().__init__(file, "the kept heads")

    def keep(self, head: AuditHead, *, by: str) -> KeptHead:
        """Keep a head; return it.

        Raises:
            StoreUnavailableError: The file cannot be written.
        """
        kept = KeptHead(head, self._clock(), by)
        self.run(
            "INSERT INTO heads (seq, hash, kept_at, kept_by) VALUES (?, ?, ?, ?)",
            (*head, kept.kept_at, by),
        )
        self.run(
            "DELETE FROM heads WHERE number <= (SELECT max(number) FROM heads) - ?",
            (MAX_HEADS,),
        )
        return kept

    def all(self) -> list[KeptHead]:
        """Return the heads, the newest first.

        Raises:
            StoreUnavailableError: The file cannot be read.
        """
        rows = self.run(
            "SELECT seq, hash, kept_at, kept_by FROM heads ORDER BY number DESC"
        )
        return [
            KeptHead(AuditHead(seq, text), kept_at, by)
            for seq, text, kept_at, by in rows
        ]
