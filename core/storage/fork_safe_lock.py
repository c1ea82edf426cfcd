"""Locks for what a forked process takes over from its parent."""

from __future__ import annotations

import os
import threading
from weakref import WeakSet

FORK_SECONDS = 2.0
"""Longest wait of a fork for each lock. When it is over the process forks all the
same, and the child may find what the lock guards held for ever."""

_awaited = WeakSet[threading.Lock]()
_held: list[threading.Lock] = []


class ForkLock:
    """A lock that a forked process finds free, whoever held it in the parent.

    It is never forgotten: a module makes one.
    """

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def awaited_lock() -> threading.Lock:
    """Return a lock that forks wait for.

    SQLite remembers locks on a file for the whole process: one that a transaction
    has during a fork can never be had in the child.
    """
    lock = threading.Lock()
    _awaited.add(lock)
    return lock


def _wait() -> None:
    locks = list(_awaited)
    _held.extend(lock for lock in locks if lock.acquire(timeout=FORK_SECONDS))


def _go_on() -> None:
    while _held:
        _held.pop().release()


os.register_at_fork(before=_wait, after_in_parent=_go_on, after_in_child=_go_on)
