"""The one place for fork handlers: a forked process makes anew what is its parent's.

A forked process has copies of its parent's objects, but none of its other threads. A
lock that such a thread held is never released, an SQLite connection must not be used
by two processes, and an open file shares its lock with the parent.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
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
