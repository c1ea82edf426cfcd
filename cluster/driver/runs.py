"""Runs on a node: sends a request, answers the program's calls, reads the result."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import anyio.abc

from toolcell.core import CellLostError, InvalidInputError, SandboxError
from toolcell.core.detached import DetachedContext
from toolcell.sandbox import Event, ExecutionResult, Finished, HostCalls, Output
from toolcell.sandbox.spi import Connection

from ..wire.codec import read_error, read_event, read_result
from ..wire.link import Exchange, Kind, Link
from ..wire.message import WireMessage
from ..wire.protocol import FOLLOWED
from ..wire.tasks import background_tasks
from . import metrics
from .acts import Acts, is_about_act
from .places import Place
from .protocol_errors import closing_link_on_error
from .remote_clock import RemoteClock
from .requests import RemoteRun

_Fields = dict[str, Any]
OnAnswer = Callable[[_Fields], None]
Request = tuple[_Fields, list[bytes]]
Stream = Literal["stdout", "stderr"]
_END_SECONDS = 10.0


def ignore(_: _Fields) -> None:
    """Do nothing with the fields of an answer."""


def stream_of(name: object) -> Stream:
    """Return the name of a stream. Raises ValueError."""
    if name == "stdout":
        return "stdout"
    if name == "stderr":
        return "stderr"
    raise ValueError("there is no such stream")


def is_node_lost(error: CellLostError) -> bool:
    """Return True if the whole node is lost, and not one cell."""
    return error.details.get("reason") == "node_lost"


async def ask(
    link: Link, fields: _Fields, *blobs: bytes, on_answer: OnAnswer = ignore
) -> WireMessage:
    """Return a node's answer to a request.

    Raises:
        CellLostError: The node is lost.
        ToolcellError: What the node raised.
    """
    async with link.exchange(fields, blobs) as exchange:
        message = await last_message(exchange)
    on_answer(message.fields)
    return message


async def last_message(exchange: Exchange) -> WireMessage:
    """Return the last message of an exchange. Raises as `ask`."""
    while True:
        found = await next_message(exchange)
        if exchange.ended:
            return found


async def next_part(exchange: Exchange) -> WireMessage:
    """Return the next message, which is not the last one. Raises as `ask`."""
    message = await next_message(exchange)
    if exchange.ended:
        raise exchange.protocol_error(ValueError("it ends too early"))
    return message


async def next_message(exchange: Exchange) -> WireMessage:
    """Return the next message of an exchange. Raises as `ask`."""
    kind, message = await exchange.receive()
    if kind is Kind.ERROR:
        with closing_link_on_error(exchange):
            error = read_error(message.fields)
        raise error
    if kind is Kind.END and message.fields.get("cancelled"):
        # Nobody here did: the node closes.
        raise exchange.lost_error()
    return message


async def run_on(
    link: Link, run: RemoteRun, asked: Request, *, on_answer: OnAnswer = ignore
) -> ExecutionResult:
    """Run a program on a node.

    If a function of the caller raises, the node gets the error, and has some seconds to
    end the run: a session outlives it.

    Raises:
        CellLostError: The node is lost.
        ToolcellError: What the node raised.
        Exception: What a function of the caller raised.
    """
    if FOLLOWED.isdisjoint(asked[0]):
        message = await ask(link, asked[0], *asked[1], on_answer=on_answer)
    else:
        message = await _run_heard(link, run, asked, on_answer)
    with closing_link_on_error(link):
        return read_result(message)


async def _run_heard(
    link: Link, run: RemoteRun, asked: Request, on_answer: OnAnswer
) -> WireMessage:
    """Run a program whose caller follows it; return the node's last message."""
    async with link.exchange(*asked) as exchange:
        caller = Caller(exchange, run)
        with caller.patience:
            try:
                async with caller.answering():
                    message = await caller.last_message()
            except SandboxError:
                caller.raise_failure()
                raise
            on_answer(message.fields)
        caller.raise_failure()
    return message


async def run_at(place: Place, run: RemoteRun, asked: Request) -> ExecutionResult:
    """Run a program in a place, and report what the way there and back took.

    Raises as `run_on`.
    """
    with place as node:
        started = time.perf_counter()
        result = await run_on(node.link, run, asked)
        whole = time.perf_counter() - started
    metrics.overhead.record(max(0.0, whole - result.usage.wall_ms / 1000))
    return result


class Caller:
    """The functions that a caller gave to a run, and what one of them raised."""

    def __init__(self, exchange: Exchange, run: RemoteRun) -> None:
        self._exchange = exchange
        self._run = run
        self._failure: Exception | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        gate = run.request.gate
        self._acts = None if gate is None else Acts(exchange, gate, self.fail)
        self._made = 0
        self._open = 0
        self.patience = anyio.CancelScope()
        """Ends the wait for a node that was sent a failure."""

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Answer what the program asks; its end cancels what is not done."""
        request = self._run.request
        if request.calls is None and request.gate is None:
            yield
            return
        async with background_tasks() as self._tasks:
            yield

    async def last_message(self, early: Sequence[WireMessage] = ()) -> WireMessage:
        """Pass on what the node says, until its last message; return that.

        Args:
            early: Messages that came before, and were not passed on.
        """
        for earlier in early:
            self._take(earlier)
        message = await next_message(self._exchange)
        while not self._exchange.ended:
            # Acts are settled in a run that has failed, too.
            if self._failure is None or is_about_act(message):
                self._take(message)
            message = await next_message(self._exchange)
        return message

    async def next_event(self, on_answer: OnAnswer) -> WireMessage:
        """Return the next message of a stream; acts before it are answered.

        Args:
            on_answer: Called with the fields of the node's last message.
        """
        with anyio.CancelScope(deadline=self.patience.deadline) as self.patience:
            try:
                message = await next_message(self._exchange)
                while self._acts and is_about_act(message) and not self._exchange.ended:
                    self._take(message)
                    message = await next_message(self._exchange)
            except SandboxError:
                self.raise_failure()
                raise
            if self._exchange.ended:
                on_answer(message.fields)
        self.raise_failure()
        return message

    def _take(self, message: WireMessage) -> None:
        fields, run = message.fields, self._run
        run.was_heard = True
        request, calls = run.request, run.request.calls
        if "call" in fields and calls is not None and self._tasks is not None:
            self._begin(self._tasks, calls, fields)
            return
        if is_about_act(message) and self._acts and self._tasks:
            with closing_link_on_error(self._exchange):
                self._acts.take(message, self._tasks)
            return
        with closing_link_on_error(self._exchange):
            output = stream_of(fields["output"]) if "output" in fields else None
            data = b"" if output is None else message.blobs[0]
            found = fields.get("connection")
            connection = None if found is None else Connection.model_validate(found)
            shown = fields.get("display")
            display = None if shown is None else Output.model_validate(shown)
        try:
            if connection is not None and request.on_connection is not None:
                request.on_connection(connection)
            if display is not None and request.on_display is not None:
                request.on_display(display)
            if output is not None and request.on_output is not None:
                request.on_output(output, data)
        except Exception as error:  # noqa: BLE001 - raised by the run
            self.fail(error)

    def _begin(
        self, tasks: anyio.abc.TaskGroup, calls: HostCalls, fields: _Fields
    ) -> None:
        """Answer a call of the program; a node passes on none that may not be."""
        with closing_link_on_error(self._exchange):
            call = _Call(self._exchange, fields)
            if call.name not in calls.names:
                raise ValueError("a call of a function that was not offered")
            if self._made == calls.max_calls or self._open == calls.max_concurrency:
                raise ValueError("more calls than allowed")
        self._made += 1
        self._open += 1
        tasks.start_soon(call.answer, calls, self)

    def has_answer(self) -> None:
        """Note that a call has its answer, so that another one may come."""
        self._open -= 1

    def fail(self, error: Exception) -> None:
        """Tell the node that a function of the caller raised."""
        if self._failure is None:
            self._failure = error
            self.patience.deadline = anyio.current_time() + _END_SECONDS
            self._exchange.send_soon({"failed": True})

    def raise_failure(self) -> None:
        """Raise what a function of the caller raised, if one did."""
        if self._failure is not None:
            raise self._failure from None


class _Call:
    """One call of a program, which the caller's handler answers."""

    def __init__(self, exchange: Exchange, fields: _Fields) -> None:
        self._exchange = exchange
        self._number = int(fields["call"])
        self._describes = "describe" in fields
        self._arguments = [*fields.get("args", ())], {**fields.get("kwargs", {})}
        self.name = str(fields["describe" if self._describes else "name"])

    async def _outcome(self, calls: HostCalls) -> _Fields:
        if not self._describes:
            return await calls.handler(self.name, *self._arguments)
        return {"value": await calls.describe(self.name) if calls.describe else {}}

    async def answer(self, calls: HostCalls, caller: Caller) -> None:
        RemoteClock(self._exchange, self._number)
        try:
            answer = await self._outcome(calls)
        except Exception as error:  # noqa: BLE001 - raised by the run
            caller.fail(error)
            return
        caller.has_answer()
        reply = {"number": self._number, "answer": answer}
        try:
            await self._exchange.send(reply)
        except InvalidInputError:
            problem = {"code": "bad_result", "message": "the result is not JSON"}
            await self._exchange.send({**reply, "answer": {"error": problem}})


async def stream_on(
    link: Link, run: RemoteRun, asked: Request, *, on_answer: OnAnswer = ignore
) -> AsyncGenerator[Event, None]:
    """Run a program on a node and yield its events; the node waits for the reader.

    Raises as `run_on`.
    """
    async with link.exchange(*asked) as exchange:
        caller = Caller(exchange, run)
        # Any task may read the next event.
        answering = DetachedContext(caller.answering())
        await answering.open()
        try:
            while True:
                message = await caller.next_event(on_answer)
                with closing_link_on_error(exchange):
                    event = read_event(message)
                    if isinstance(event, Finished) != exchange.ended:
                        raise ValueError("a stream ends with its result")
                yield event
                if exchange.ended:
                    return
                await exchange.send({"next": True})
        finally:
            await answering.aclose()
