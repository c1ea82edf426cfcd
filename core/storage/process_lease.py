"""Tells living processes from dead ones, by a locked file for each.

The kernel releases the lock when its owner ends, however it ends, so a file that can
be locked belongs to a dead process. The owner's lock is exclusive, and those of
processes that look are shared: two that look at once do not take each other for the
owner. Process ids would not do: they are used again, and mean nothing to a container
that shares the folder. A missing file proves nothing: somebody may have cleaned up.
"""

from __future__ import annotations

import fcntl
import glob
import os
import secrets
from pathlib import Path
from typing import Literal


class OwnerFile:
    """This process's own locked file, beside a database that processes share.

    Args:
        database: The file of the database.
    """

    def __init__(self, database: Path) -> None:
        self._database = database.absolute()
        self.pid = os.getpid()
        self.name = ""
        """The name of the lease, by which other processes know its owner."""

        while not self.name:
            name = secrets.token_hex(8)
            fd = self._create(name)
            if fd is not None:
                self.name, self._fd = name, fd

    def _create(self, name: str) -> int | None:
        """Return a new locked file; None if another process removed it first."""
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
        try:
            fd = os.open(self._file_of(name), flags, 0o600)
        except FileExistsError:
            return None
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)
        return None

    def _file_of(self, name: str) -> str:
        return f"{self._database}-owner-{name}"

    def restore(self) -> None:
        """Make the file again if it was removed. Raises OSError."""
        try:
            os.stat(self._file_of(self.name))
        except FileNotFoundError:
            fd = self._create(self.name)
            if fd is not None:
                os.close(self._fd)
                self._fd = fd

    def state_of(self, name: str) -> Literal["alive", "dead", "missing"]:
        """Return whether another owner is alive, by its file."""
        try:
            fd = os.open(self._file_of(name), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return "missing"
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return "alive"
        finally:
            os.close(fd)
        return "dead"

    def dead_owners(self) -> list[str]:
        """Return the owners whose files are not locked any more."""
        files = glob.glob(f"{glob.escape(str(self._database))}-owner-*")
        names = (file.rpartition("-")[2] for file in files)
        return [name for name in names if name != self.name and self._is_dead(name)]

    def _is_dead(self, name: str) -> bool:
        return self.state_of(name) == "dead"

    def remove(self, name: str) -> None:
        """Remove the file of a dead owner that has no open holds any more."""
        path = self._file_of(name)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return
        try:
            # While we have the lock no new owner can take the file.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            Path(path).unlink(missing_ok=True)
        except BlockingIOError:
            return
        finally:
            os.close(fd)

    def close(self, *, holds: bool = False) -> None:
        """End the lease, once; a forked child only closes its copy of the parent's.

        Args:
            holds: True if this process still has open holds: the file then stays, and
                other processes find its owner dead.
        """
        if self._fd < 0:
            return
        if os.getpid() == self.pid and not holds:
            Path(self._file_of(self.name)).unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = -1
