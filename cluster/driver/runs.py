"""Runs on a node: sends a request, answers the program's calls, reads the result."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pydantic import ValidationError

from toolcell.core import InvalidInputError, SandboxError
from toolcell.sandbox import (
    Connection,
    Event,
    ExecutionResult,
    Finished,
    HostCalls,
    answer_for,
)

from ..wire.codec import read_error, read_event, read_result
from ..wire.link import Exchange, Kind, Link
from ..wire.message import Message, WireError
from ..wire.tasks import tasks_beside
from .requests import RemoteRun

_Fields = dict[str, Any]
OnAnswer = Callable[[_Fields], None]


def ignore(_: _Fields) -> None:
    """Do nothing with the fields of an answer."""


async def ask(
    link: Link, fields: _Fields, *blobs: bytes, on_answer: OnAnswer = ignore
) -> Message:
    """Return a node's answer to a request.

    Raises:
        CellLostError: The node is lost.
        ToolcellError: What the node raised.
    """
    async with link.exchange(fields, blobs) as exchange:
        message = await last_message(exchange)
    on_answer(message.fields)
    return message


async def last_message(exchange: Exchange) -> Message:
    """Return the last message of an exchange. Raises as `ask`."""
    while True:
        found = await next_message(exchange)
        if exchange.ended:
            return found


async def next_message(exchange: Exchange) -> Message:
    """Return the next message of an exchange. Raises as `ask`."""
    kind, message = await exchange.receive()
    if kind is Kind.ERROR:
        try:
            raise read_error(message.fields)
        except WireError as error:
            raise exchange.nonsense(error) from None
    if kind is Kind.END and message.fields.get("cancelled"):
        # Nobody here did: the node closes.
        raise exchange.lost_error()
    return message


async def run_on(
    link: Link,
    run: RemoteRun,
    operation: str,
    *,
    on_answer: OnAnswer = ignore,
    **more: Any,
) -> ExecutionResult:
    """Run a program on a node. Raises as `ask`, and what a handler of calls raises."""
    fields, blobs = run.packed(operation, **more)
    failures: list[Exception] = []
    async with link.exchange(fields, blobs) as exchange:
        async with _answering(exchange, run.calls, failures) as answer:
            try:
                message = await next_message(exchange)
                while not exchange.ended:
                    _handle(exchange, message, run, answer)
                    message = await next_message(exchange)
            except SandboxError:
                if failures:
                    raise failures[0] from None
                raise
    on_answer(message.fields)
    try:
        return read_result(message)
    except WireError as error:
        raise exchange.nonsense(error) from None


def _handle(
    exchange: Exchange, message: Message, run: RemoteRun, answer: OnAnswer
) -> None:
    fields = message.fields
    try:
        if "call" in fields:
            answer(fields)
        elif "output" in fields and run.on_output is not None:
            run.on_output(fields["output"], message.blobs[0])
        elif "connection" in fields and run.on_connection is not None:
            run.on_connection(Connection.model_validate(fields["connection"]))
    except (ValidationError, WireError) as error:
        raise exchange.nonsense(error) from None


@asynccontextmanager
async def _answering(
    exchange: Exchange, calls: HostCalls | None, failures: list[Exception]
) -> AsyncIterator[OnAnswer]:
    """Yield what begins to answer a call; the run's end cancels the others.

    What a handler raises is added to the failures, and ends the run at the node.
    """
    if calls is None:
        yield ignore
        return
    async with tasks_beside() as tasks:

        def answer(fields: _Fields) -> None:
            tasks.start_soon(_Call(exchange, fields).answer, calls, failures)

        yield answer


class _Call:
    """One call of a program, which the caller's handler answers.

    Its clock stands still at the node while the handler pauses the deadline.
    """

    def __init__(self, exchange: Exchange, fields: _Fields) -> None:
        self._exchange = exchange
        self._fields = fields
        self._pauses = 0

    async def answer(self, calls: HostCalls, failures: list[Exception]) -> None:
        self._outer = answer_for(self)
        asked = self._fields
        try:
            answer = await calls.handler(asked["name"], asked["args"], asked["kwargs"])
        except Exception as error:  # noqa: BLE001 - raised by the run
            failures.append(error)
            await self._exchange.send({"call": asked["call"], "failed": True})
            return
        told = {"call": asked["call"], "answer": answer}
        try:
            await self._exchange.send(told)
        except InvalidInputError:
            problem = {"code": "bad_result", "message": "the result is not JSON"}
            await self._exchange.send({**told, "answer": {"error": problem}})

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
        self._exchange.send_soon({"call": self._fields["call"], "pause": paused})


async def stream_on(
    link: Link,
    run: RemoteRun,
    operation: str,
    *,
    on_answer: OnAnswer = ignore,
    **more: Any,
) -> AsyncGenerator[Event, None]:
    """Run a program on a node and yield its events; the node waits for the reader.

    Raises:
        CellLostError: The node is lost.
        ToolcellError: What the node raised.
    """
    fields, blobs = run.packed(operation, **more)
    async with link.exchange(fields, blobs) as exchange:
        while True:
            message = await next_message(exchange)
            try:
                event = read_event(message)
            except WireError as error:
                raise exchange.nonsense(error) from None
            if isinstance(event, Finished):
                on_answer(message.fields)
            yield event
            if exchange.ended:
                return
            await exchange.send({"next": True})
