"""The results of a batch in the order in which its calls end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from toolcell.core import InvalidInputError, ToolcellError, ToolResult

HandOver = Callable[[int, ToolResult, ToolcellError | None], None]
"""Takes the index of a call, its result, and the error if it failed."""

_Item = tuple[int, ToolResult, ToolcellError | None]


class ResultStream:
    """The results of a batch in the order in which its calls end.

    Use it in `async with`, and iterate over it there: only then has every call ended
    when control is back. At a `break` in a bare `async for` Python ends nothing.

    Args:
        produce: Makes the calls, and hands each result to the function it gets.
        count: The number of calls.
        raise_on_error: Whether the error of a failed call is raised in its turn.
    """

    def __init__(
        self,
        produce: Callable[[HandOver], Awaitable[None]],
        count: int,
        *,
        raise_on_error: bool,
    ) -> None:
        self._produce = produce
        self._count = count
        self._raise_on_error = raise_on_error
        self._tasks: TaskGroup | None = None
        self._received: MemoryObjectReceiveStream[_Item] | None = None

    async def __aenter__(self) -> ResultStream:
        if self._tasks is not None:
            raise InvalidInputError(
                "a stream of results is used once", hint="call execute_streaming again"
            )
        send, self._received = anyio.create_memory_object_stream[_Item](self._count)
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._send_results, send)
        return self

    async def _send_results(self, send: MemoryObjectSendStream[_Item]) -> None:
        def hand_over(
            index: int, result: ToolResult, error: ToolcellError | None
        ) -> None:
            # A caller that has left the stream takes no more results.
            with suppress(anyio.BrokenResourceError):
                send.send_nowait((index, result, error))

        with send:
            await self._produce(hand_over)

    async def __aexit__(self, *_: object) -> None:
        if self._tasks is None or self._received is None:
            return
        self._tasks.cancel_scope.cancel()
        self._received.close()
        # The caller's error is not the group's: it goes on as it is.
        await self._tasks.__aexit__(None, None, None)

    def __aiter__(self) -> AsyncIterator[tuple[int, ToolResult]]:
        if self._received is None:
            raise InvalidInputError(
                "a stream of results is read inside `async with`",
                hint="async with executor.execute_streaming(calls) as results: ...",
            )
        return self

    async def __anext__(self) -> tuple[int, ToolResult]:
        if self._received is None:
            raise StopAsyncIteration
        try:
            index, result, error = await self._received.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None
        if error is not None and self._raise_on_error:
            raise error
        return index, result
