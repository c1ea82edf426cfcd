"""Who is alive: a locked file for each process that holds something.

The kernel lets go of the lock when its owner ends, however it ends, so that a file
that can be locked is that of a dead one.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path


class Owner:
    """This process's own locked file, beside the database."""

    def __init__(self, database: Path) -> None:
        self.name = secrets.token_hex(8)
        self.pid = os.getpid()
        self._path = _file_of(database, self.name)
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        """Let go; a forked child only drops its copy, and the parent lives on."""
        if os.getpid() == self.pid:
            self._path.unlink(missing_ok=True)
        os.close(self._fd)


def is_dead(database: Path, name: str) -> bool:
    """Return whether an owner has ended; its file is removed then."""
    path = _file_of(database, name)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        path.unlink(missing_ok=True)
        return True
    finally:
        os.close(fd)


def _file_of(database: Path, name: str) -> Path:
    return database.with_name(f"{database.name}-owner-{name}")
