"""The events of one run, handed out while it goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, Self, TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from pydantic import BaseModel

from toolcell.core import InvalidInputError

from ..execution.result import FlowResult
from ..values.events import Ended, FlowEvent, Tell

S = TypeVar("S", bound=BaseModel)
EVENTS_AHEAD = 64
"""Events that wait for their reader. When it is reached the thread waits."""


class EventStream(Generic[S]):
    """The events of one run or resume of a thread, in their order.

    Use it in `async with`, and iterate over it there. Leaving early cancels the run,
    and control is back when that has ended; the thread can be resumed. An error of the
    run, such as ThreadBusyError, is raised after the events that came before it.

    At most 64 events wait for the reader. When it is reached the thread waits, and the
    time counts for a `timeout` of its nodes.

    Args:
        work: Runs the thread, and tells its events to the function that it gets.
    """

    def __init__(self, work: Callable[[Tell], Awaitable[FlowResult[S]]]) -> None:
        self._work = work
        self._group: TaskGroup | None = None
        self._received: MemoryObjectReceiveStream[FlowEvent] | None = None
        self._result: FlowResult[S] | None = None
        self._error: Exception | None = None

    @property
    def result(self) -> FlowResult[S]:
        """The result of the run.

        Raises:
            InvalidInputError: The run has not ended.
        """
        if self._result is None:
            raise InvalidInputError(
                "the run has no result yet", hint="read its events to the end"
            )
        return self._result

    async def __aenter__(self) -> Self:
        if self._group is not None:
            raise InvalidInputError(
                "a stream of events is used once", hint="call flow.stream again"
            )
        send, self._received = anyio.create_memory_object_stream[FlowEvent](
            EVENTS_AHEAD
        )
        self._group = await anyio.create_task_group().__aenter__()
        self._group.start_soon(self._run, send)
        return self

    async def _run(self, send: MemoryObjectSendStream[FlowEvent]) -> None:
        with send:
            try:
                self._result = await self._work(send.send)
            except Exception as error:  # noqa: BLE001
                self._error = error
                return
            # A reader that has left takes no more events.
            with suppress(anyio.BrokenResourceError):
                await send.send(Ended(self._result))

    async def __aexit__(self, *_: object) -> None:
        assert self._group is not None
        assert self._received is not None
        self._group.cancel_scope.cancel()
        # The caller's error is not the group's: it goes on as it is.
        await self._group.__aexit__(None, None, None)
        self._received.close()

    def __aiter__(self) -> Self:
        if self._received is None:
            raise InvalidInputError(
                "a stream of events is read inside `async with`",
                hint="async with flow.stream(...) as events: ...",
            )
        return self

    async def __anext__(self) -> FlowEvent:
        assert self._received is not None
        try:
            return await self._received.receive()
        except anyio.EndOfStream:
            error, self._error = self._error, None
            if error is not None:
                raise error from None
            raise StopAsyncIteration from None
