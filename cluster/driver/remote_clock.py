"""The clock of a program on a node, while something that it asks for is answered."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from toolcell.sandbox.spi import answer_for

from ..wire.link import Exchange


class RemoteClock:
    """Stands still at the node while a handler pauses the deadline.

    Make it in the task that answers.

    Args:
        exchange: The program's exchange.
        number: The number of what it asks for.
    """

    def __init__(self, exchange: Exchange, number: int) -> None:
        self._exchange = exchange
        self._number = number
        self._pauses = 0
        self._outer = answer_for(self)

    @asynccontextmanager
    async def pause_deadline(self) -> AsyncIterator[None]:
        """Pause the deadlines of the run and of the runs around it."""
        outer = self._outer
        async with outer.pause_deadline() if outer else contextlib.nullcontext():
            self._pauses += 1
            if self._pauses == 1:
                self._tell(paused=True)
            try:
                yield
            finally:
                self._pauses -= 1
                if self._pauses == 0:
                    self._tell(paused=False)

    def _tell(self, *, paused: bool) -> None:
        self._exchange.send_soon({"number": self._number, "pause": paused})
