"""Opens SQLite files that several processes share."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from .processes import ForkLock

OPEN_SECONDS = 5.0
"""Longest wait for others that open or write. When it is over, `sqlite3.Error`."""

FORMAT = 2
"""The format of all files (`PRAGMA user_version`). A later toolcell that writes another
one raises it, and migrates older files when it opens them."""

_RETRY_SECONDS = 0.005
_making = ForkLock()


class SharedDatabase(sqlite3.Connection):
    """A connection that can tell whether its files are still those at their path.

    SQLite goes on with files that were removed or replaced, which nobody else sees.
    """

    _files: tuple[tuple[str, tuple[int, int]], ...] = ()

    def __del__(self) -> None:
        """Close the files, if their owner has not, and do not warn of it."""
        self.close()

    def begin(self, kind: Literal["DEFERRED", "IMMEDIATE"] = "IMMEDIATE") -> None:
        """Begin a transaction, unless a file is gone.

        Raises:
            sqlite3.Error: A file is gone, or others hold the write lock.
        """
        self.check_place()
        self.execute(f"BEGIN {kind}")

    def check_place(self) -> None:
        """Raise `sqlite3.OperationalError` if a file was removed or replaced."""
        for path, known in self._files:
            try:
                state = os.stat(path)
            except OSError:
                found = None
            else:
                found = state.st_dev, state.st_ino
            if found != known:
                name = os.path.basename(path)
                raise sqlite3.OperationalError(f"{name} was removed or replaced")

    def _note_place(self, path: str | Path) -> None:
        # With a first look all of them are there, until the last connection closes.
        self.execute("SELECT 1 FROM sqlite_schema").fetchone()
        files = []
        for name in (f"{os.path.abspath(path)}{end}" for end in ("", "-wal", "-shm")):
            state = os.stat(name)
            files.append((name, (state.st_dev, state.st_ino)))
        self._files = tuple(files)


def open_sqlite(
    path: str | Path,
    prepare: Callable[[SharedDatabase], object],
    *,
    synchronous: Literal["NORMAL", "FULL"],
    busy_seconds: float,
) -> SharedDatabase:
    """Open a file for its owner alone (mode 0600), with a write-ahead log.

    Args:
        path: The file; it is made if it is missing, its folder is not.
        prepare: Makes or checks the tables.
        synchronous: NORMAL survives SIGKILL, FULL survives power loss as well.
        busy_seconds: Seconds that a later statement waits for other writers.

    Raises:
        OSError: The file cannot be made, or is a link, a folder or a device.
        sqlite3.Error: The file is not a database, is of a newer toolcell, or others
            held it for `OPEN_SECONDS`.
    """
    with _making:
        _make_private(path)
        database = sqlite3.connect(
            path,
            timeout=OPEN_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            factory=SharedDatabase,
        )
    try:
        _use_log(database)
        database.execute(f"PRAGMA synchronous = {synchronous}")
        found = _format_of(database, path)
        prepare(database)
        if found != FORMAT:
            database.execute(f"PRAGMA user_version = {FORMAT}")
        database._note_place(path)
        database.execute(f"PRAGMA busy_timeout = {round(busy_seconds * 1000)}")
    except BaseException:
        database.close()
        raise
    return database


def _format_of(database: sqlite3.Connection, path: str | Path) -> int:
    """Return the format of a file, 0 for a new one; refuse a newer one."""
    [found] = database.execute("PRAGMA user_version").fetchone()
    if found > FORMAT:
        raise sqlite3.DatabaseError(
            f"{os.path.basename(path)} is of a newer toolcell: its format is "
            f"{found}, and this one reads {FORMAT}"
        )
    return int(found)


def _make_private(path: str | Path) -> None:
    # A file that is there is not opened: closing it would let go of the locks that
    # SQLite holds on it elsewhere in this process (https://sqlite.org/howtocorrupt.html,
    # section 2.2), and another process would remove the log as unused.
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        os.close(os.open(path, flags, 0o600))
    except FileExistsError:
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(f"{path} is no regular file") from None
        if mode & 0o077:
            os.chmod(path, 0o600)


def _use_log(database: sqlite3.Connection) -> None:
    # SQLite does not wait here: two that change the mode would wait for each other.
    give_up_at = time.monotonic() + OPEN_SECONDS
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > give_up_at:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return
