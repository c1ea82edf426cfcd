"""The calls that a server makes now: how many there may be, and how they end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from toolcell.core import ToolcellError


class BusyError(ToolcellError):
    """As many calls run as may run, or the server is about to stop."""

    kind = "server.busy"
    retryable = True


class ActiveCalls:
    """Counts calls on one event loop.

    Args:
        most: Calls at once. When it is reached further ones are refused as busy.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._scopes: set[anyio.CancelScope] = set()
        self._idle = anyio.Event()
        self.draining = False
        """Whether no further call is taken."""

    def __len__(self) -> int:
        return len(self._scopes)

    @property
    def ready(self) -> bool:
        """Whether a call would be taken now."""
        return not self.draining and len(self._scopes) < self._most

    @contextmanager
    def enter(self) -> Iterator[anyio.CancelScope]:
        """Hold a place for a call; the scope tells whether draining cancelled it.

        Raises:
            BusyError: There is none.
        """
        if not self.ready:
            raise BusyError(
                "the server is about to stop"
                if self.draining
                else f"{self._most} calls run already",
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
        """Take no more calls, and wait for those that run.

        Args:
            seconds: How long. When it is reached they are cancelled, and waited for.

        Returns:
            How many were cancelled.
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
