"""Lookups of answers in the store of approvals: few at a time for an event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from toolcell.core import StoreUnavailableError

from .records import ApprovalRecord

_P = ParamSpec("_P")
_T = TypeVar("_T")

THREADS = 8
"""Lookups at once, and so threads. When it is reached further ones wait."""

HANDLER_THREADS = 40
"""Handlers that are plain functions, at once. When it is reached further ones wait."""

LAST_PAUSE_SECONDS = 1.0
"""The longest pause between two lookups."""

EndedRequests = Mapping[str, ApprovalRecord | None]
"""Records of requests that no longer wait, by id; None for one that is forgotten."""


class _SharedLookup:
    """One lookup for all calls that want one when it begins."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.found: EndedRequests | StoreUnavailableError | None = None


class ApprovalLookups:
    """The lookups of one event loop.

    Args:
        ended: Returns those of some requests that no longer wait.
    """

    def __init__(self, ended: Callable[[Iterable[str]], EndedRequests]) -> None:
        self._ended = ended
        self._threads = anyio.CapacityLimiter(THREADS)
        self._handlers = anyio.CapacityLimiter(HANDLER_THREADS)
        self._turn = anyio.Lock()
        self._next = _SharedLookup()
        self._turns: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    def turn(self, request_id: str) -> anyio.Lock:
        """Return the lock of those who are about to use one approval."""
        return self._turns.setdefault(request_id, anyio.Lock())

    async def in_thread(
        self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Run a function that may wait for a disk or a lock, in one of its threads."""
        work = partial(function, *args, **kwargs)
        return await anyio.to_thread.run_sync(work, limiter=self._threads)

    async def asking(
        self, handler: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Ask a person by a plain function; who gives up leaves its thread behind."""
        work = partial(handler, *args, **kwargs)
        return await anyio.to_thread.run_sync(
            work, abandon_on_cancel=True, limiter=self._handlers
        )

    async def ended(self, request_id: str) -> EndedRequests:
        """Return the record of a request, and maybe of others; empty while it waits.

        All calls that ask meanwhile are answered by one lookup.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        look = self._next
        look.ids.add(request_id)
        async with self._turn:
            if look.found is None:
                # From here on callers may know of an answer that this lookup misses.
                self._next = _SharedLookup()
                try:
                    look.found = await self.in_thread(self._ended, look.ids)
                except StoreUnavailableError as error:
                    look.found = error
        if isinstance(look.found, StoreUnavailableError):
            raise look.found
        assert look.found is not None
        return look.found


def until_next_look(pause: float) -> float:
    """Return a pause in seconds; calls that have waited for long look together."""
    if pause < LAST_PAUSE_SECONDS:
        return pause
    return LAST_PAUSE_SECONDS - anyio.current_time() % LAST_PAUSE_SECONDS
