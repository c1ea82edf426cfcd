"""Pictures that programs showed to models, kept for the people of the console."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore
from time import time
from typing import Any, NamedTuple

from toolcell.core import ImagePart, Part, StoreUnavailableError
from toolcell.core.storage.sqlite import SharedDatabase

from ..config.state_file import StateFile, open_state_file

PICTURES_FILE = "pictures.db"

MAX_BYTES = 67_108_864
"""Bytes of all pictures, to which each adds 4,096. When it is reached the oldest are
dropped."""

MAX_WAITING = 8
"""Calls whose pictures wait until they are written. When it is reached those of further
calls are not kept."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS pictures (
    sha256 TEXT PRIMARY KEY,
    shown_at REAL NOT NULL,
    mime TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    data BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS pictures_by_time ON pictures (shown_at, bytes);
CREATE TABLE IF NOT EXISTS pictures_size (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    bytes INTEGER NOT NULL
) STRICT;
INSERT OR IGNORE INTO pictures_size
    SELECT 1, coalesce(sum(bytes + 4096), 0) FROM pictures;
CREATE TRIGGER IF NOT EXISTS pictures_added AFTER INSERT ON pictures BEGIN
    UPDATE pictures_size SET bytes = bytes + NEW.bytes + 4096;
END;
CREATE TRIGGER IF NOT EXISTS pictures_deleted AFTER DELETE ON pictures BEGIN
    UPDATE pictures_size SET bytes = bytes - OLD.bytes - 4096;
END;
"""
_KEEP = """
INSERT INTO pictures VALUES (?, ?, ?, ?, ?)
ON CONFLICT (sha256) DO UPDATE SET shown_at = excluded.shown_at
"""
_DROP_EXPIRED = "DELETE FROM pictures WHERE shown_at < ?"
_DROP_OLDEST = """
DELETE FROM pictures
WHERE rowid = (SELECT rowid FROM pictures ORDER BY shown_at LIMIT 1)
    AND (SELECT bytes FROM pictures_size) > ?
RETURNING 1
"""
_log = logging.getLogger("toolcell.host")


class Picture(NamedTuple):
    """A picture; it is the program's word, whatever its type says."""

    mime: str
    """`image/png` or `image/jpeg`."""

    data: bytes


class Pictures(StateFile):
    """Pictures by the SHA-256 that records have of them, in a file of processes.

    One thread writes and reads them in the order of the calls. What reads waits for it,
    and does so beside the event loop.

    Args:
        path: The file, in an existing folder.
        days: Days for which a picture is kept.
        max_bytes: Bytes of all pictures, to which each adds 4,096. When it is reached
            the oldest are dropped.
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
        self._room = BoundedSemaphore(MAX_WAITING)
        self._failures = 0
        self._thread = ThreadPoolExecutor(1, "toolcell pictures")
        prepare = partial(_prepare, oldest=self._oldest())
        file = open_state_file(path, prepare, synchronous="NORMAL")
        super().__init__(file, "the pictures")

    def __exit__(self, *_: object) -> None:
        """Write what waits, and close the file."""
        self._thread.shutdown()
        super().__exit__()

    def keep(self, parts: Sequence[Part]) -> None:
        """Keep the pictures of a call soon; one that cannot be kept is logged."""
        pictures = [part for part in parts if isinstance(part, ImagePart)]
        if not pictures:
            return
        if not self._room.acquire(blocking=False):
            _log_lost("too many wait")
            return
        try:
            self._thread.submit(self._write, pictures, self._clock(), self._failures)
        except RuntimeError as error:  # It is closed, or there can be no more threads.
            self._room.release()
            _log_lost(error)

    def _write(self, pictures: list[ImagePart], now: float, failures: int) -> None:
        try:
            if failures == self._failures:
                self._write_all(pictures, now)
            else:  # Each would wait for the file as long as the one before.
                _log_lost("one before it is not kept")
        except StoreUnavailableError as error:
            self._failures += 1
            _log_lost(error)
        finally:
            self._room.release()

    def _write_all(self, pictures: list[ImagePart], now: float) -> None:
        for picture in pictures:
            try:
                data = base64.b64decode(picture.data)
            except ValueError as error:
                _log_lost(error)
                continue
            sha256 = hashlib.sha256(data).hexdigest()
            self.run(_KEEP, (sha256, now, picture.mime, len(data), data))
        self.run(_DROP_EXPIRED, (self._oldest(),))
        while self.run(_DROP_OLDEST, (self._max_bytes,)):
            pass

    def _oldest(self) -> float:
        return self._clock() - self._days * 86_400

    def has(self, sha256: str) -> bool:
        """Return True if a picture is kept. Raises StoreUnavailableError."""
        return bool(self._read("SELECT 1", sha256))

    def find(self, sha256: str) -> Picture | None:
        """Return a picture. Raises StoreUnavailableError."""
        rows = self._read("SELECT mime, data", sha256)
        return Picture(*rows[0]) if rows else None

    def _read(self, select: str, sha256: str) -> list[tuple[Any, ...]]:
        statement = f"{select} FROM pictures WHERE sha256 = ? AND shown_at >= ?"
        values = sha256, self._oldest()
        return self._thread.submit(self.run, statement, values).result()


def _prepare(file: SharedDatabase, *, oldest: float) -> None:
    file.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
    file.execute(_DROP_EXPIRED, (oldest,))


def _log_lost(reason: object) -> None:
    _log.warning("a picture is not kept: %s", reason)
