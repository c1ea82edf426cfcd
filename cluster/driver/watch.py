"""A watched folder of a session on a node."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio

from toolcell.core import ToolcellError
from toolcell.sandbox.spi import FileChange, SandboxWatch

from ..wire.link import Exchange
from .protocol_errors import closing_link_on_error
from .runs import next_part


class ClusterWatch(SandboxWatch):
    """Reports changes below a folder of a node's cell.

    Args:
        exchange: Leads to the watch at the node.
        stack: Leaves the exchange.
    """

    def __init__(self, exchange: Exchange, stack: AsyncExitStack) -> None:
        super().__init__()
        self._exchange = exchange
        self._stack = stack
        self._waiting = anyio.CancelScope()
        self._receiving = anyio.Lock()

    async def _send_question(self, number: int, *, at_once: bool) -> None:
        await self._exchange.send({"number": number, "at_once": at_once})

    async def _wait_for_answer(self) -> None:
        async with self._receiving:
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
            found = [FileChange.model_validate(change) for change in fields["changes"]]
        self._came += found
        self._answered = number

    async def _end(self) -> None:
        self._waiting.cancel()
        async with self._receiving:
            await self._stack.aclose()
