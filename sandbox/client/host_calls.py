"""Answers the calls that a program in a cell makes to the host."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
from pydantic_core import to_json

from toolcell.core import CellLostError, InvalidInputError
from toolcell.core.event_loop import unwrapped_single_error
from toolcell.core.text.json_size import count_values

from ..cell.wire.frames import CALLS_AHEAD, FrameError, strict_json
from ..network.run_clock import RunClock, answer_for
from ..network.types import SendFrame

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Bytes of one answer. When it is reached the program gets an error instead."""

MAX_CALL_VALUES = 25_000
"""Values in one call's arguments: texts, numbers, lists, objects. When it is reached
the call is answered by an error, unread."""

_AVERAGE_VALUES = 1_000
_NUMBER_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCalls:
    """The functions of the host that a program may call, as `tools.<name>(...)`.

    The caller is known from the run, never from anything that the program says.
    """

    names: tuple[str, ...]
    handler: Callable[[str, list[Any], dict[str, Any]], Awaitable[dict[str, Any]]]
    """Called with name, positional and named arguments, all of them untrusted. Returns
    `{"value": ...}` or `{"error": {"code": ..., "message": ...}}`; `retry_after` in
    an error is the seconds to wait. An exception of it ends the run and is raised by
    `run`."""

    describe: Callable[[str], Awaitable[dict[str, Any]]] | None = None
    """Called with one of the names, when `tools describe` asks for it. Returns what is
    to be known of it, as JSON; None: that is its name. An exception of it ends the run
    and is raised by `run`."""

    max_calls: int = 100
    """Calls of one run, with 1,000 values each on average. When it is reached the cell
    answers further calls with an error, without asking the host."""

    max_concurrency: int = 8
    """Calls that are served at once. When it is reached further ones wait."""

    max_pause_seconds: float = 0.0
    """Seconds by which `pause_deadline` may extend the deadline of one run in all. When
    it is reached the clock runs again."""

    def __post_init__(self) -> None:
        """Raise InvalidInputError if a name is no text."""
        if not all(isinstance(name, str) for name in self.names):
            raise InvalidInputError(
                "the names of what may be called must be text", hint="use str keys"
            )


class CallServer:
    """Serves the calls of one run; leaving it cancels those that are unanswered."""

    def __init__(
        self, calls: HostCalls, send_frame: SendFrame, clock: RunClock
    ) -> None:
        self._calls = calls
        self._send_frame = send_frame
        self._clock = clock
        # Fast: a turn of the event loop costs more than the work that they guard.
        self._room = anyio.Semaphore(calls.max_concurrency, fast_acquire=True)
        self._sending = anyio.Lock(fast_acquire=True)
        self._left = calls.max_calls
        self._values_left = max(MAX_CALL_VALUES, calls.max_calls * _AVERAGE_VALUES)
        self._open = 0
        self._tasks: anyio.abc.TaskGroup

    async def __aenter__(self) -> CallServer:
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The run is over: nobody waits for the calls that are still served.
        self._tasks.cancel_scope.cancel()
        # As that of a handler, or of the body.
        with unwrapped_single_error():
            await self._tasks.__aexit__(kind, error, trace)

    def serve(self, payload: bytes) -> None:
        """Begin to answer a call.

        Raises:
            FrameError: The supervisor passed on more calls than it may.
        """
        if self._open == CALLS_AHEAD * self._calls.max_concurrency or not self._left:
            raise FrameError("more calls than allowed")
        self._open += 1
        self._left -= 1
        number = int(payload[:_NUMBER_BYTES], 16)
        self._tasks.start_soon(self._answer, number, payload[_NUMBER_BYTES:])

    async def _answer(self, number: int, text: bytes) -> None:
        answer_for(self._clock)
        async with self._room:
            # A call that waits for room can get it from one that the end cancels.
            await anyio.lowlevel.checkpoint_if_cancelled()
            answer = await self._outcome(text)
        encoded = self._encoded({"id": number, **answer})
        async with self._sending:
            self._open -= 1
            try:
                await self._send_frame({"type": "answer"}, encoded)
            except CellLostError:
                return

    async def _outcome(self, text: bytes) -> dict[str, Any]:
        # Counted before it is parsed: the program chooses how much work parsing is.
        max_values = min(MAX_CALL_VALUES, self._values_left)
        values = count_values(text, max_values)
        if values > max_values:
            return _error("too_large", "the arguments hold too many values")
        self._values_left -= values
        try:
            call = strict_json(text)
            if "describe" in call:
                answer = self._description(call["describe"])
            else:
                answer = self._call_result(
                    str(call["name"]), list(call["args"]), dict(call["kwargs"])
                )
        except (FrameError, KeyError, TypeError, ValueError):
            return _error("invalid", "this is no call")
        return await answer

    async def _call_result(
        self, name: str, arguments: list[Any], options: dict[str, Any]
    ) -> dict[str, Any]:
        if name not in self._calls.names:
            return _unknown(name)
        return await self._calls.handler(name, arguments, options)

    async def _description(self, name: object) -> dict[str, Any]:
        """Return what is known of a tool, or, without a name, the names of all."""
        calls = self._calls
        if name is None:
            return {"value": list(calls.names)}
        if name not in calls.names:
            return _unknown(str(name))
        if calls.describe is None:
            return {"value": {"name": name}}
        return {"value": await calls.describe(str(name))}

    def _encoded(self, answer: dict[str, Any]) -> bytes:
        text = answer_as_json(answer)
        if 0 < len(text) <= MAX_ANSWER_BYTES:
            return text
        why = "the result is too large" if text else "the result is not JSON"
        problem = {"id": answer["id"], **_error("bad_result", why)}
        return json.dumps(problem).encode()


def answer_as_json(answer: dict[str, Any]) -> bytes:
    """Return the JSON of an answer; nothing if it has none."""
    with contextlib.suppress(ValueError):
        # The loop waits for this. It takes a fifth of the time of `json`, which alone
        # writes halves of characters and refuses all that is not a number.
        text = to_json(answer, inf_nan_mode="constants")
        if b"NaN" not in text and b"Infinity" not in text:
            return text
    try:
        return json.dumps(answer, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return b""


def _unknown(name: str) -> dict[str, Any]:
    return _error("not_found", f"there is no tool {name[:100]!r}")


def _error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


class UnansweredCalls:
    """Takes the calls of a program that is being ended, and answers none."""

    def serve(self, payload: bytes) -> None:
        """Leave a call without an answer."""
