"""How calls of one event loop look at the store of approvals: few at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread

from toolcell.core import StoreUnavailableError

from .store import ApprovalRecord

_P = ParamSpec("_P")
_T = TypeVar("_T")

THREADS = 8
"""Looks at once, and so threads. When it is reached further ones wait their turn."""

EndedRequests = Mapping[str, ApprovalRecord | None]
"""What became of requests that no longer wait; None of one that is forgotten."""


class _SharedLookup:
    """One look, for all who want one when it begins."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.found: EndedRequests | StoreUnavailableError | None = None


class ApprovalLookups:
    """The looks of one event loop.

    Args:
        ended: Returns which of some requests no longer wait.
    """

    def __init__(self, ended: Callable[[Iterable[str]], EndedRequests]) -> None:
        self._ended = ended
        self._threads = anyio.CapacityLimiter(THREADS)
        self._turn = anyio.Lock()
        self._next = _SharedLookup()

    async def in_thread(
        self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Run what may wait for a disk or a lock; never behind the threads of tools."""
        work = partial(function, *args, **kwargs)
        return await anyio.to_thread.run_sync(work, limiter=self._threads)

    async def ended(self, request_id: str) -> EndedRequests:
        """Return what became of a request, and maybe of others; nothing: it waits.

        All who ask meanwhile are answered by one look.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        look = self._next
        look.ids.add(request_id)
        async with self._turn:
            if look.found is None:
                # Who asks from here on may know of an answer that this look misses.
                self._next = _SharedLookup()
                try:
                    look.found = await self.in_thread(self._ended, look.ids)
                except StoreUnavailableError as error:
                    look.found = error
        if isinstance(look.found, StoreUnavailableError):
            raise look.found
        assert look.found is not None
        return look.found
