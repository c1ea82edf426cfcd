"""Processes that share files: those that were forked, and those that have died.

The fork handlers are here alone. A forked process has copies of its parent's objects,
but none of its other threads. A lock that such a thread held is never released, an
SQLite connection must not be used by two processes, and an open file shares its lock
with the parent: all of them are made anew.

A living process has a locked file. The kernel releases the lock when its owner ends,
however it ends, so a file that can be locked belongs to a dead process. The owner's
lock is exclusive, and those of processes that look are shared: two that look at once
do not take each other for the owner. Process ids would not do: they are used again,
and mean nothing to a container that shares the folder. A missing file proves nothing:
somebody may have cleaned up.
"""

from __future__ import annotations

import fcntl
import glob
import os
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from weakref import WeakSet

FORK_SECONDS = 2.0
"""Longest wait of a fork for each lock. When it is over the process forks all the
same, and in the child the data behind the lock may stay locked for ever."""

_generation = 0
_renewals: list[Callable[[], object]] = []
_awaited = WeakSet[threading.Lock]()
_held: list[threading.Lock] = []


def in_each_child(renew: Callable[[], object]) -> None:
    """Call a function in every process that is forked from here, right after the fork.

    Args:
        renew: Makes anew the things that the process must not share with its parent.
            It is never forgotten: a module registers one.
    """
    _renewals.append(renew)


def awaited_lock() -> threading.Lock:
    """Return a lock that forks wait for.

    SQLite remembers locks on a file for the whole process: one that a transaction
    has during a fork can never be had in the child.
    """
    lock = threading.Lock()
    _awaited.add(lock)
    return lock


class ForkLock:
    """A lock that a forked process finds free, whoever held it in the parent.

    It is never forgotten: a module makes one.
    """

    def __init__(self) -> None:
        self._renew()
        in_each_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class ForkAware(ABC):
    """Base of objects with a lock, a connection or a descriptor of their process.

    An operation calls `_follow_fork` first. In a forked process the first of them
    makes anew, by `_renew`, what is the parent's; other threads wait for it.
    """

    def __init__(self) -> None:
        self._made_in = _generation

    @property
    def _is_inherited(self) -> bool:
        """True if locks, connections and descriptors are still the parent's."""
        return self._made_in != _generation

    def _follow_fork(self) -> None:
        """Make anew what is of another process, if this one was forked since."""
        if self._made_in != _generation:
            with _renewing:
                if self._made_in != _generation:
                    self._renew()
                    self._made_in = _generation

    @abstractmethod
    def _renew(self) -> None:
        """Make locks, connections and descriptors anew for this process."""


def _before() -> None:
    locks = list(_awaited)
    _held.extend(lock for lock in locks if lock.acquire(timeout=FORK_SECONDS))


def _release() -> None:
    while _held:
        _held.pop().release()


def _in_child() -> None:
    # A number of this process's generation is quicker to ask for than its id.
    global _generation
    _generation += 1
    _release()
    for renew in _renewals:
        renew()


_renewing = ForkLock()
os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)


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
