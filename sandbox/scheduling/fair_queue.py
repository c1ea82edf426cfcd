"""A queue for a limited number of places, fair between agents."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

import anyio

from toolcell.core import SandboxUnavailableError
from toolcell.core.text.counted import counted

# The weight of the latest turn in the mean length of turns.
_WEIGHT = 0.2
_UNKNOWN_SECONDS = 1.0
_PATIENCE_SECONDS = 5.0
_log = logging.getLogger(__name__)


class _QueuedRun:
    __slots__ = ("called", "has_place", "refusal")

    def __init__(self) -> None:
        self.called = anyio.Event()
        self.has_place = False
        self.refusal: SandboxUnavailableError | None = None


class FairQueue:
    """A limited number of places, given to waiting agents in turn.

    Each agent has its own line, and the lines take turns. If the queue is full,
    the last request of the longest line is refused for an agent whose own line is
    shorter by two or more; so no agent keeps others out by asking more often.

    Args:
        places: The number of places.
        max_waiting: The largest number of waiting requests, of all agents together.
            When it is reached further ones are refused.
        clock: Returns seconds that never decrease.
    """

    def __init__(
        self,
        places: int,
        max_waiting: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._places = places
        self._free = places
        self.max_waiting = max_waiting
        """The largest number of waiting requests."""

        self._clock = clock
        # In the order of the agents' turns.
        self._lines: dict[str | None, deque[_QueuedRun]] = {}
        self._turn_seconds: float | None = None
        self._closed = False
        self._announced = False
        self.waiting = 0
        """The number of requests that wait now."""

    async def enter(self, agent_id: str | None) -> float:
        """Wait for a place; return the time, which `leave` takes.

        Raises:
            SandboxUnavailableError: Too many wait (`details["reason"]` is
                "queue_full", `details["retry_after"]` an estimate in seconds), or
                the queue was closed.
        """
        if self._closed:
            raise _closed_error()
        if (entered := self.enter_at_once()) is not None:
            return entered
        waiter = self._line_up(agent_id)
        try:
            with anyio.move_on_after(_PATIENCE_SECONDS):
                await waiter.called.wait()
            if not waiter.called.is_set():
                self._announce()
                await waiter.called.wait()
        except BaseException:
            if waiter.has_place:
                self._pass_on()
            elif waiter.refusal is None:
                self._step_out(agent_id, waiter)
            raise
        if waiter.refusal is not None:
            raise waiter.refusal
        return self._clock()

    def _announce(self) -> None:
        """Say once what is waited for, until nobody waits any more."""
        if not self._announced:
            self._announced = True
            _log.warning(
                "%s for a place: all %d are taken (max_concurrency)",
                "one run or session waits"
                if self.waiting == 1
                else f"{self.waiting} runs and sessions wait",
                self._places,
            )

    def enter_at_once(self) -> float | None:
        """Take a free place; return the time, which `leave` takes, or None."""
        if self._closed or self._free <= 0:
            return None
        self._announced = False
        self._free -= 1
        return self._clock()

    def leave(self, entered: float) -> None:
        """Give a place back; the next one in line has it at once."""
        seconds = self._clock() - entered
        mean = self._turn_seconds
        self._turn_seconds = (
            seconds if mean is None else mean + _WEIGHT * (seconds - mean)
        )
        self._pass_on()

    def resize(self, places: int) -> None:
        """Change the number of places; who has one keeps it.

        Args:
            places: The new number. With 0 all requests wait.
        """
        more = places - self._places
        self._places = places
        for _ in range(more):
            self._pass_on()
        self._free += min(more, 0)

    def close(self) -> None:
        """Refuse all requests that wait, and later ones."""
        self._closed = True
        for line in self._lines.values():
            for waiter in line:
                _refuse(waiter, _closed_error())
        self._lines.clear()
        self.waiting = 0

    def _line_up(self, agent_id: str | None) -> _QueuedRun:
        if self.waiting >= self.max_waiting:
            self._make_room(agent_id)
        waiter = _QueuedRun()
        self._lines.setdefault(agent_id, deque()).append(waiter)
        self.waiting += 1
        return waiter

    def _make_room(self, agent_id: str | None) -> None:
        mine = len(self._lines.get(agent_id, ()))
        longest = max(self._lines.values(), key=len, default=deque())
        if len(longest) < mine + 2:
            raise self._full_error()
        _refuse(longest.pop(), self._full_error())
        self.waiting -= 1

    def _step_out(self, agent_id: str | None, waiter: _QueuedRun) -> None:
        line = self._lines[agent_id]
        line.remove(waiter)
        if not line:
            del self._lines[agent_id]
        self.waiting -= 1

    def _pass_on(self) -> None:
        if self._free < 0 or not self._lines:
            self._free += 1
            return
        agent_id = next(iter(self._lines))
        line = self._lines.pop(agent_id)
        waiter = line.popleft()
        if line:
            self._lines[agent_id] = line
        self.waiting -= 1
        waiter.has_place = True
        waiter.called.set()

    def _full_error(self) -> SandboxUnavailableError:
        mean = _UNKNOWN_SECONDS if self._turn_seconds is None else self._turn_seconds
        retry_after = round(mean * (self.waiting + 1) / max(self._places, 1), 3)
        return SandboxUnavailableError(
            f"all places are taken, with {counted(self.waiting, 'run')} in the queue",
            hint="raise max_concurrency or max_queue, or try again later",
            details={
                "reason": "queue_full",
                "retry_after": retry_after,
                "waiting": self.waiting,
            },
        )


def _refuse(waiter: _QueuedRun, refusal: SandboxUnavailableError) -> None:
    waiter.refusal = refusal
    waiter.called.set()


def _closed_error() -> SandboxUnavailableError:
    return SandboxUnavailableError(
        "the manager was closed", hint="open a new SandboxManager"
    )
