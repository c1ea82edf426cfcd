"""Who is alive: a locked file for each process that holds something.

The kernel lets go of the lock when its owner ends, however it ends, so that a file
that can be locked is a dead one's. Process ids would not do: they are used again, and
mean nothing to a container that shares the folder.
"""

from __future__ import annotations

import fcntl
import glob
import os
import secrets
from pathlib import Path


class OwnerFile:
    """This process's own locked file, beside a database that processes share.

    Files of owners that were killed are removed when a new one is made.

    Args:
        database: The file of the database.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        for left in glob.glob(f"{glob.escape(str(database))}-owner-*"):
            self.sees_alive(left.rpartition("-")[2])
        self.pid = os.getpid()
        self.name, self._fd = self._lock()
        """The name that others know it by."""

    def _lock(self) -> tuple[str, int]:
        while True:
            name = secrets.token_hex(8)
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
            fd = os.open(self._file_of(name), flags, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return name, fd
            # Swept away by another owner before the lock was ours.
            os.close(fd)

    def _file_of(self, name: str) -> Path:
        return self._database.with_name(f"{self._database.name}-owner-{name}")

    def sees_alive(self, name: str) -> bool:
        """Return whether another owner lives; a dead one's file is removed."""
        path = self._file_of(name)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            path.unlink(missing_ok=True)
            return False
        finally:
            os.close(fd)

    def close(self) -> None:
        """Let go; a forked child only drops its copy, and the parent lives on."""
        if os.getpid() == self.pid:
            self._file_of(self.name).unlink(missing_ok=True)
        os.close(self._fd)
