"""The driver of a run: it answers calls of the program, whose guard is there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from toolcell.sandbox import HostCalls
from toolcell.sandbox.spi import pause_deadline

from ..wire.link import Exchange
from ..wire.message import Message

_Fields = dict[str, Any]


class CallerFailedError(Exception):
    """A function of the driver's raised; the driver knows what."""


class RunDriver:
    """Reads what a driver sends in the exchange of a run.

    Args:
        exchange: The run's exchange.
        wanted: The driver's `HostCalls`, without its handler; None: no calls.
        stop: Ends the run, when a function of the caller has raised.
    """

    def __init__(
        self,
        exchange: Exchange,
        wanted: _Fields | None,
        stop: Callable[[], Awaitable[None]],
    ) -> None:
        self._exchange = exchange
        self._stop = stop
        self._numbers = itertools.count(1)
        self._waiting: dict[int, MemoryObjectSendStream[Message]] = {}
        self.calls: HostCalls | None = None
        """The calls that the program may make."""

        if wanted is not None:
            self.calls = HostCalls(
                names=tuple(wanted["names"]),
                handler=self._handle,
                max_calls=int(wanted["max_calls"]),
                max_concurrency=int(wanted["max_concurrency"]),
                max_pause_seconds=float(wanted["max_pause_seconds"]),
                describe=self._describe if wanted["describes"] else None,
            )

    async def listen(self) -> None:
        """Hand answers to the calls that wait for them; end the run if asked to."""
        while True:
            _, message = await self._exchange.receive()
            if "failed" in message.fields:
                await self._stop()
                continue
            waiting = self._waiting.get(message.fields["call"])
            if waiting is not None:
                waiting.send_nowait(message)

    async def _handle(
        self, name: str, arguments: list[Any], options: _Fields
    ) -> _Fields:
        return await self._ask({"name": name, "args": arguments, "kwargs": options})

    async def _describe(self, name: str) -> _Fields:
        answer = await self._ask({"describe": name})
        return dict(answer["value"])

    async def _ask(self, asked: _Fields) -> _Fields:
        number = next(self._numbers)
        sender, answers = anyio.create_memory_object_stream[Message](math.inf)
        self._waiting[number] = sender
        try:
            with sender, answers:
                await self._exchange.send({"call": number, **asked})
                async with AsyncExitStack() as pause:
                    async for message in answers:
                        if "answer" in message.fields:
                            return dict(message.fields["answer"])
                        # A person is asked, or has answered.
                        await pause.aclose()
                        if message.fields["pause"]:
                            await pause.enter_async_context(pause_deadline())
            raise self._exchange.lost_error()
        finally:
            del self._waiting[number]
