"""The calls that live: they wait or run, with their output, and the way to end one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import time
from typing import Any, Literal

import anyio

from toolcell.core import InvalidInputError, ToolCall, ToolStatus
from toolcell.guard import Redactor
from toolcell.tools import CallWatcher
from toolcell.tools.spi import CallCancelledError, CallStage, CallWatch

from .event_bus import EventBus
from .events import (
    CallEnded,
    CallEvent,
    CallParked,
    CallQueued,
    CallResumed,
    CallStarted,
)
from .pictures import Pictures

MAX_BYTES = 65_536
"""Bytes of output that are kept of one call. When it is reached the oldest are dropped,
and a reader that has not read them gets their number."""

_PIECE_BYTES = 4_096
_MAX_PIECES = 512


@dataclass(slots=True)
class _Piece:
    start: int
    """The bytes of output before it."""

    stream: str
    data: bytearray

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class OutputRing:
    """The last 64 KiB that a program has printed, on both streams in their order.

    A reader holds no queue: it has a place, and reads what is kept after it.
    """

    def __init__(self) -> None:
        self._pieces: deque[_Piece] = deque()
        self._changed: anyio.Event | None = None
        self.size = 0
        """The bytes that were printed so far."""

    def add(self, stream: str, data: bytes) -> None:
        """Add output.

        Args:
            stream: `stdout` or `stderr`.
            data: The bytes.
        """
        self.size += len(data)
        data = data[-MAX_BYTES:]
        start = self.size - len(data)
        for cut in range(0, len(data), _PIECE_BYTES):
            self._append(start + cut, stream, data[cut : cut + _PIECE_BYTES])
        # Each byte may be on another stream than the one before: pieces count as well.
        while self._pieces and (
            self._pieces[0].end <= self.size - MAX_BYTES
            or len(self._pieces) > _MAX_PIECES
        ):
            self._pieces.popleft()
        self.wake()

    def _append(self, start: int, stream: str, data: bytes) -> None:
        last = self._pieces[-1] if self._pieces else None
        fits = last is not None and len(last.data) + len(data) <= _PIECE_BYTES
        if last is not None and fits and last.stream == stream:
            last.data += data
        else:
            self._pieces.append(_Piece(start, stream, bytearray(data)))

    def read(self, after: int = 0) -> tuple[int, list[tuple[str, bytes]]]:
        """Return the output after a place.

        Args:
            after: The place: bytes of output that the reader has, or has given up.

        Returns:
            The number of bytes that are missing before it, since they were dropped;
            and the output as pairs of stream and bytes.
        """
        floor = max(after, self.size - MAX_BYTES)
        if self._pieces:
            floor = max(floor, self._pieces[0].start)
        found = [
            (piece.stream, bytes(piece.data[max(0, floor - piece.start) :]))
            for piece in self._pieces
            if piece.end > floor
        ]
        return floor - after, found

    def wake(self) -> None:
        """Let all readers that wait look again."""
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()

    async def changed(self) -> None:
        """Wait until something was added, or the call has ended."""
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()


CallState = Literal["queued", "running", "parked", "ended"]
"""The stage of a call that lives, or `ended`."""


class LiveCall(CallWatch):
    """One call, from its arrival to its end.

    Args:
        calls: The calls that it is one of.
        number: Its number in this process, from 1.
        call: The call.
        run_id: The agent's run.
        session: The client's session.
        since: The time at which it arrived, in seconds since 1970 (UTC).
        stop: Ends it, soon after it returns. None: it cannot be ended by itself.
    """

    def __init__(
        self,
        calls: LiveCalls,
        number: int,
        call: ToolCall,
        run_id: str | None,
        session: str | None,
        since: float,
        stop: Callable[[], object] | None,
    ) -> None:
        self._calls = calls
        self.number = number
        self.call = call
        self.run_id = run_id
        self.session = session
        self.since = since
        self.stop = stop
        self.state: CallState = "queued"
        self.deadline: float | None = None
        """The time at which its run is stopped, unless it waits for a person meanwhile.
        None: it was not admitted yet, or has no such time."""

        self.output = OutputRing()
        self.on_output = (self.output.add,)
        self.on_shown = None if calls.pictures is None else calls.pictures.keep
        self.ended = anyio.Event()
        self.status: ToolStatus | None = None
        """The status of its result; None while it lives."""

        self.cancelled_as: CallCancelledError | None = None
        self.cancelled_by: str | None = None
        """The person who cancelled it."""

        self._begun = False

    @property
    def id(self) -> str:
        """The id of the call: its caller's choice, and unique to no one else."""
        return self.call.id

    @property
    def agent_id(self) -> str | None:
        """The agent that calls."""
        return self.call.agent_id

    @property
    def tool(self) -> str:
        """The name of the tool."""
        return self.call.name

    @property
    def parent_id(self) -> str | None:
        """The call inside which it was made."""
        return self.call.parent_id

    def arguments(self, redactor: Redactor) -> Mapping[str, Any]:
        """Return its arguments without secrets."""
        shown: Any = redactor(self.call.arguments)
        return shown  # type: ignore[no-any-return]

    def enter(self, stage: CallStage) -> None:
        """Take note of its stage; `CallWatch.enter`."""
        self.state = stage
        match stage:
            case "queued":
                self._calls.publish(CallQueued, self)
            case "parked":
                self._calls.publish(CallParked, self)
            case "running":
                self._calls.publish(CallResumed if self._begun else CallStarted, self)
                self._begun = True

    def admit(self, call: ToolCall, seconds: float | None) -> None:
        """Take note of its admission; `CallWatch.admit`. None: nothing stops it."""
        self.call = call
        self.deadline = None if seconds is None else self._calls.clock() + seconds

    def end(self, status: ToolStatus) -> None:
        """Take note of its end; `CallWatch.end`."""
        self._calls.take_out(self, status)


class LiveCalls(CallWatcher):
    """The calls of a host that live: those that agents make, and those inside them.

    A call is here from its arrival to its end: while it waits for a place or a person,
    and while it runs. Of one batch those are that have begun. Acts that are no
    calls of tools are here, too.

    Args:
        bus: Publishes them.
        pictures: Keeps what they draw. None: nothing does.
        clock: Returns seconds since 1970 (UTC).
    """

    def __init__(
        self,
        bus: EventBus,
        pictures: Pictures | None = None,
        *,
        clock: Callable[[], float] = time,
    ) -> None:
        self.pictures = pictures
        self.clock = clock
        self._bus = bus
        self._calls: dict[int, LiveCall] = {}
        self._last = 0

    def begin(
        self,
        call: ToolCall,
        run_id: str | None,
        session: str | None,
        stop: Callable[[], object] | None,
    ) -> LiveCall:
        """Add a call that arrived; `CallWatcher.begin`."""
        self._last += 1
        now = self.clock()
        live = LiveCall(self, self._last, call, run_id, session, now, stop)
        self._calls[live.number] = live
        return live

    def take_out(self, call: LiveCall, status: ToolStatus) -> None:
        """Take out a call that has a result."""
        del self._calls[call.number]
        call.state, call.status = "ended", status
        call.ended.set()
        call.output.wake()
        self.publish(CallEnded, call, status=status)

    def all(self, agent_id: str | None = None) -> list[LiveCall]:
        """Return the calls that live, the oldest first; None: those of all agents."""
        return [
            call
            for call in self._calls.values()
            if agent_id is None or call.agent_id == agent_id
        ]

    def find(self, number: int) -> LiveCall:
        """Return a call that lives.

        Raises:
            InvalidInputError: There is none with this number, or not any more.
        """
        call = self._calls.get(number)
        if call is None:
            raise InvalidInputError(
                f"no running call has the number {number}",
                hint="it has ended; records have its result",
            )
        return call

    async def cancel(self, call: LiveCall, *, by: str) -> None:
        """Cancel a call, and wait until it has ended.

        Args:
            call: The call; one that has ended stays as it is.
            by: The name of the person.

        Raises:
            InvalidInputError: It cannot be ended by itself.
        """
        if not call.ended.is_set():
            check_stoppable(call)
            assert call.stop is not None
            call.cancelled_by, call.cancelled_as = by, _cancelled()
            call.stop()
        await call.ended.wait()

    def publish(self, kind: type[CallEvent], call: LiveCall, **facts: Any) -> None:
        """Publish an event of a call."""
        if self._bus.has_listeners:
            event = kind(
                agent=call.agent_id,
                id=call.id,
                tool=call.tool,
                number=call.number,
                parent=call.parent_id,
                **facts,
            )
            self._bus.publish(event)


def check_stoppable(call: LiveCall) -> None:
    """Check that a call can be ended by itself.

    Raises:
        InvalidInputError: It cannot.
    """
    if call.stop is None:
        raise InvalidInputError(
            "this call cannot be ended by itself", hint="end its sandbox"
        )


def _cancelled() -> CallCancelledError:
    """Return the error of a call that a person cancelled."""
    return CallCancelledError(
        "a person who runs this host ended the call",
        hint="look whether it took effect before you call it again",
    )
