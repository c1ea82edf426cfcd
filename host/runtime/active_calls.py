"""Limits the calls that servers run at once, and drains them when they stop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from toolcell.core import ToolcellError


class BusyError(ToolcellError):
    """The limit of calls at once is reached, or the server is about to stop."""

    kind = "server.busy"
    retryable = True


class ActiveCalls:
    """The calls that the servers of a host run now, on one event loop.

    Args:
        max_calls: Calls at once. When it is reached further ones are refused as busy.
    """

    def __init__(self, max_calls: int) -> None:
        self._max_calls = max_calls
        self._scopes: set[anyio.CancelScope] = set()
        self._idle = anyio.Event()
        self.draining = False
        """True when further calls are refused because the server stops."""

    def __len__(self) -> int:
        return len(self._scopes)

    @property
    def ready(self) -> bool:
        """True if a call would be accepted now."""
        return not self.draining and len(self._scopes) < self._max_calls

    @contextmanager
    def enter(self) -> Iterator[anyio.CancelScope]:
        """Hold a place for a call; draining cancels the scope that is yielded.

        Raises:
            BusyError: No place is free, or the server stops.
        """
        if not self.ready:
            raise BusyError(
                "the server is about to stop"
                if self.draining
                else f"{self._max_calls} calls run already",
                hint="try again later",
            )
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)
                if not self._scopes:
                    self._idle.set()

    async def drain(self, seconds: float) -> int:
        """Refuse further calls, and wait for those that run.

        Args:
            seconds: Seconds to wait. When it is reached the calls are cancelled, and
                their cleanup is waited for.

        Returns:
            The number of calls that were cancelled.
        """
        self.draining = True
        with anyio.move_on_after(seconds):
            await self._wait()
        left = list(self._scopes)
        for scope in left:
            scope.cancel()
        await self._wait()
        return len(left)

    async def _wait(self) -> None:
        while self._scopes:
            self._idle = anyio.Event()
            await self._idle.wait()
