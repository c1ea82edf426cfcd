"""Pictures that programs showed to models, kept for the people of the console."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from time import time
from typing import NamedTuple

from toolcell.core import ImagePart, Part, StoreUnavailableError
from toolcell.core.storage.sqlite import SharedDatabase

from ..config.state_file import StateFile, open_state_file

PICTURES_FILE = "pictures.db"

MAX_BYTES = 67_108_864
"""Bytes of all pictures. When it is reached the oldest are dropped."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS pictures (
    sha256 TEXT PRIMARY KEY,
    shown_at REAL NOT NULL,
    mime TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    data BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS pictures_by_time ON pictures (shown_at, bytes);
"""
_KEEP = """
INSERT INTO pictures VALUES (?, ?, ?, ?, ?)
ON CONFLICT (sha256) DO UPDATE SET shown_at = excluded.shown_at
"""
_DROP = """
DELETE FROM pictures WHERE shown_at < ? OR sha256 IN (
    SELECT sha256 FROM (
        SELECT sha256, sum(bytes) OVER (ORDER BY shown_at DESC, sha256) AS newer
        FROM pictures
    ) WHERE newer > ?
)
"""
_log = logging.getLogger("toolcell.host")


class Picture(NamedTuple):
    """A picture; it is the program's word, whatever its type says."""

    mime: str
    """`image/png` or `image/jpeg`."""

    data: bytes


class Pictures(StateFile):
    """Pictures by the SHA-256 that records have of them, in a file of processes.

    Args:
        path: The file, in an existing folder.
        days: Days for which a picture is kept.
        max_bytes: Bytes of all pictures. When it is reached the oldest are dropped.
        clock: Returns seconds since 1970 (UTC).

    Raises:
        ConfigError: The file cannot be used.
    """

    def __init__(
        self,
        path: Path,
        *,
        days: float,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time,
    ) -> None:
        self._days = days
        self._max_bytes = max_bytes
        self._clock = clock
        file = open_state_file(path, _prepare, synchronous="NORMAL")
        super().__init__(file, "the pictures")

    def keep(self, parts: Sequence[Part]) -> None:
        """Keep the pictures of a call; one that cannot be kept is logged."""
        pictures = [part for part in parts if isinstance(part, ImagePart)]
        try:
            for picture in pictures:
                self._keep(picture)
            if pictures:
                oldest = self._clock() - self._days * 86_400
                self.run(_DROP, (oldest, self._max_bytes))
        except StoreUnavailableError as error:
            _log.warning("a picture is not kept: %s", error)

    def _keep(self, picture: ImagePart) -> None:
        data = base64.b64decode(picture.data)
        sha256 = hashlib.sha256(data).hexdigest()
        self.run(_KEEP, (sha256, self._clock(), picture.mime, len(data), data))

    def has(self, sha256: str) -> bool:
        """Return True if a picture is kept. Raises StoreUnavailableError."""
        return bool(self.run("SELECT 1 FROM pictures WHERE sha256 = ?", (sha256,)))

    def find(self, sha256: str) -> Picture | None:
        """Return a picture. Raises StoreUnavailableError."""
        where = "SELECT mime, data FROM pictures WHERE sha256 = ?"
        rows = self.run(where, (sha256,))
        return Picture(*rows[0]) if rows else None


def _prepare(file: SharedDatabase) -> None:
    file.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
