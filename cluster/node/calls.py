"""The driver of a run: it answers what a program asks, since its guard is there."""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any, Self

import anyio

from toolcell.core import CellLostError, ToolcellError
from toolcell.sandbox import HostCalls
from toolcell.sandbox.spi import NetworkAct, RequestGate, Unplaced, pause_deadline

from ..wire.codec import pack_refusal, read_refusal
from ..wire.link import Exchange
from ..wire.message import WireMessage

_Fields = dict[str, Any]


class CallerFailedError(Exception):
    """A function of the driver's raised; the driver knows what."""


class RunDriver:
    """Reads what a driver sends in the exchange of a run, and asks it for the program.

    It is the `RequestGate` of the program, if the driver has one.

    Args:
        exchange: The run's exchange.
        fields: The request to run, which says what the program may ask the driver.
        stop: Ends the run, when a function of the caller has raised.
    """

    def __init__(
        self, exchange: Exchange, fields: _Fields, stop: Callable[[], Awaitable[None]]
    ) -> None:
        self._exchange = exchange
        self._stop = stop
        self._numbers = itertools.count(1)
        self._asked: dict[int, _Question] = {}
        self._is_heard = self._has_ended = False
        self._wanted = anyio.Semaphore(0)
        self.calls: HostCalls | None = None
        """The calls that the program may make."""

        self.gate: RequestGate | None = None
        """Judges its requests to a guarded network."""

        if (calls := fields.get("calls")) is not None:
            self.calls = HostCalls(
                names=tuple(calls["names"]),
                handler=self._handle,
                max_calls=int(calls["max_calls"]),
                max_concurrency=int(calls["max_concurrency"]),
                max_pause_seconds=float(calls["max_pause_seconds"]),
                describe=self._describe if calls["describes"] else None,
            )
        if (gate := fields.get("gate")) is not None:
            self.max_pause_seconds = float(gate["max_pause_seconds"])
            self.gate = self

    async def listen(self) -> None:
        """Hand answers to what waits for them; end the run, or an act, if asked to."""
        self._is_heard = True
        try:
            while True:
                _, message = await self._exchange.receive()
                if "failed" in message.fields:
                    await self._stop()
                elif "next" in message.fields:
                    self._wanted.release()
                elif question := self._asked.get(message.fields["number"]):
                    question.take(message)
        finally:
            # The end of an act waits for the driver, even in a run that is cancelled.
            self._is_heard, self._has_ended = False, True
            for question in self._asked.values():
                question.give_up()

    async def wants_more(self) -> None:
        """Return when the reader of a stream has taken an event; once for each."""
        await self._wanted.acquire()

    async def _handle(
        self, name: str, arguments: list[Any], options: _Fields
    ) -> _Fields:
        return await self._ask({"name": name, "args": arguments, "kwargs": options})

    async def _describe(self, name: str) -> _Fields:
        answer = await self._ask({"describe": name})
        return dict(answer["value"])

    async def _ask(self, asked: _Fields) -> _Fields:
        with self._question() as question:
            await self._exchange.send({"call": question.number, **asked})
            return dict((await question.answer())["answer"])

    @contextmanager
    def _question(self, act: NetworkAct | None = None) -> Iterator[_Question]:
        if self._has_ended:
            raise self._exchange.lost_error()
        number = next(self._numbers)
        with _Question(number, act, self._exchange.lost_error) as question:
            self._asked[number] = question
            try:
                yield question
            finally:
                del self._asked[number]

    @asynccontextmanager
    async def admit(self, act: NetworkAct) -> AsyncIterator[None]:
        """Have the driver's guard admit an act; see `RequestGate`.

        Raises:
            ToolcellError: On entering: the guard refuses it.
        """
        with self._question(act) as question:
            try:
                await self._exchange.send({"act": question.number, **_asked(act)})
                await self._admission(act, question)
                yield
            finally:
                if not question.is_settled:
                    await self._settlement(act, question)

    async def _settlement(self, act: NetworkAct, question: _Question) -> None:
        """Let the driver charge and record an act before the program goes on."""
        ended = {"ended": question.number, "outcome": {**act.outcome()}}
        self._exchange.send_soon(ended)
        # Whoever lost its driver is lost, too.
        with suppress(CellLostError), anyio.CancelScope(shield=self._is_heard):
            while not question.is_settled:
                await question.answer()

    async def _admission(self, act: NetworkAct, question: _Question) -> None:
        while "admitted" not in await question.answer():
            held: _Fields = {"held": question.number}
            try:
                assert act.hold_body is not None
                body = await act.hold_body()
                held |= {"facts": body.facts, "shown": body.shown}
            except ToolcellError as error:
                held["error"] = pack_refusal(error)
            await self._exchange.send(held)

    async def unplaced(self, act: NetworkAct, reason: Unplaced, message: str) -> None:
        """Have the driver's guard note an act; see `RequestGate`."""
        with self._question(act) as question:
            asked = {**_asked(act), "unplaced": [reason, message]}
            await self._exchange.send({"act": question.number, **asked})
            await question.answer()


class _Question:
    """Something that the driver is asked, and what it says to that.

    Args:
        number: Its number in the exchange.
        act: What the driver may stop.
        lost: Returns the error for an answer that does not come.
    """

    def __init__(
        self, number: int, act: NetworkAct | None, lost: Callable[[], CellLostError]
    ) -> None:
        self.number = number
        self._act = act
        self._lost = lost
        self._sender, self._answers = anyio.create_memory_object_stream[_Fields](
            math.inf
        )
        self.is_settled = False
        """True once the driver has said its last word."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.close()
        self._answers.close()

    def take(self, message: WireMessage) -> None:
        """Take note of what the driver says."""
        if "stop" not in message.fields:
            self._sender.send_nowait(message.fields)
        elif self._act is not None:
            self._act.stop()

    def give_up(self) -> None:
        """Expect nothing more of the driver."""
        self._sender.close()

    async def answer(self) -> _Fields:
        """Return the next answer; the clock stands still while a person looks.

        Raises:
            CellLostError: There will be none.
            GuardDeniedError: It refuses what it was asked.
        """
        async with AsyncExitStack() as pause:
            async for fields in self._answers:
                self.is_settled = "settled" in fields
                if "refused" in fields:
                    raise read_refusal(fields["refused"])
                if "pause" not in fields:
                    return fields
                await pause.aclose()
                if fields["pause"]:
                    await pause.enter_async_context(pause_deadline())
        raise self._lost()


def _asked(act: NetworkAct) -> _Fields:
    has_body = act.hold_body is not None
    return {"name": act.name, "arguments": {**act.arguments}, "has_body": has_body}
