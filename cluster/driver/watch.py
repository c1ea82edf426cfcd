"""A watched folder of a session on a node."""

from __future__ import annotations

from collections import deque
from contextlib import AsyncExitStack
from typing import Self

import anyio
from anyio.lowlevel import checkpoint

from toolcell.core import ToolcellError
from toolcell.sandbox.spi import FileChange

from ..wire.link import Exchange
from .protocol_errors import closing_link_on_error
from .runs import next_part


class ClusterWatch:
    """Reports changes below a folder; it is a `SandboxWatch`, as `FileWatch` is.

    Args:
        exchange: Leads to the watch at the node.
        stack: Leaves the exchange.
    """

    def __init__(self, exchange: Exchange, stack: AsyncExitStack) -> None:
        self._exchange = exchange
        self._stack = stack
        self._came: deque[FileChange] = deque()
        self._asked = 0
        self._answered = 0
        self._failure: ToolcellError | None = None
        self._is_closed = False
        self._waiting = anyio.CancelScope()
        self._hearing = anyio.Lock()
        self._reading = anyio.ResourceGuard("watching")

    async def changes(self) -> tuple[FileChange, ...]:
        """Look now, and return all changes that were not taken yet."""
        with self._reading:
            await self._ask(at_once=True)
            found = tuple(self._came)
            self._came.clear()
            return found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FileChange:
        """Return the next change, and wait for it."""
        if self._is_closed:
            raise StopAsyncIteration
        await checkpoint()
        with self._reading:
            while not self._came:
                await self._ask(at_once=False)
            return self._came.popleft()

    async def _ask(self, *, at_once: bool) -> None:
        """Wait for an answer of the node; an earlier question may still have none."""
        self._require_open()
        if at_once or self._answered == self._asked:
            self._asked += 1
            await self._exchange.send({"number": self._asked, "at_once": at_once})
        async with self._hearing:
            with anyio.CancelScope() as self._waiting:
                while self._answered < self._asked:
                    await self._receive()
        self._require_open()

    async def _receive(self) -> None:
        try:
            message = await next_part(self._exchange)
        except ToolcellError as error:
            self._failure = error
            raise
        fields = message.fields
        with closing_link_on_error(self._exchange):
            number = int(fields["number"])
            if not self._answered < number <= self._asked:
                raise ValueError("an answer that nobody asked for")
            found = [FileChange.model_validate(each) for each in fields["changes"]]
        self._came += found
        self._answered = number

    def _require_open(self) -> None:
        if self._is_closed:
            raise anyio.ClosedResourceError
        if self._failure is not None:
            raise self._failure

    async def aclose(self) -> None:
        """End the watch; who waits for changes gets `anyio.ClosedResourceError`."""
        if not self._is_closed:
            self._is_closed = True
            self._waiting.cancel()
            with anyio.CancelScope(shield=True):
                async with self._hearing:
                    await self._stack.aclose()
        await checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
