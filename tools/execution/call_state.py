"""The state of one call while its tool runs, and the call that runs now."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from decimal import Decimal

import anyio

from toolcell.core import Part
from toolcell.sandbox import ExecutionResult
from toolcell.sandbox.spi import pause_deadline

from .threads import ThreadJob

HeldSlots = frozenset[int]
"""The slots that a call and the calls around it hold."""

NO_SLOTS: HeldSlots = frozenset()


class CallState:
    """The facts of a run while it goes on, and after it was cancelled."""

    held: HeldSlots = NO_SLOTS
    backend: str | None = None
    job: ThreadJob | None = None
    cpu_ms = 0
    bytes = 0
    reported: frozenset[str] = frozenset()
    """Units whose cost the tool itself reported."""

    outer: CallState | None = None
    """The run of the tool that made this call."""

    scope: anyio.CancelScope | None = None
    """Ends the run at its deadline, once that is set."""

    parts: Sequence[Part] = ()
    """Pictures and texts that the tool shows to the model; its context adds them."""

    extension = 0.0
    """Seconds by which the deadline is moved."""

    _pauses = 0
    _paused = _pause_began = _pause_left = 0.0

    def __init__(self, agent: str = "") -> None:
        self.agent = agent
        self.usage: dict[str, int | str] = {}

    def add_cell_usage(self, result: ExecutionResult) -> None:
        """Add the resources that a run in a cell used."""
        self.backend = result.backend
        self.cpu_ms += math.ceil(result.usage.cpu_ms)
        self.bytes += len(result.stdout_bytes) + len(result.stderr_bytes)
        self.bytes += result.usage.network_bytes
        self.usage |= {"cpu_ms": self.cpu_ms, "bytes": self.bytes}

    def add_reported_cost(self, cost: Mapping[str, int | str]) -> None:
        """Add a cost that the tool reports; its first report replaces the maximum."""
        for unit, amount in cost.items():
            before = self.usage[unit] if unit in self.reported else 0
            total = Decimal(before) + Decimal(amount)
            self.usage[unit] = f"{total:f}" if unit == "usd" else int(total)
        self.reported |= cost.keys()

    def pause(self, max_seconds: float) -> None:
        """Stop the clock of the deadline.

        Args:
            max_seconds: Seconds of pauses in the whole run. When it is reached the
                clock goes on.
        """
        self._pauses += 1
        if self._pauses == 1:
            self._pause_began = anyio.current_time()
            self._pause_left = max(max_seconds - self._paused, 0.0)
            self._extend(self._pause_left)

    def resume(self) -> None:
        """Start the clock again, once for each `pause`."""
        self._pauses -= 1
        if self._pauses == 0:
            took = min(anyio.current_time() - self._pause_began, self._pause_left)
            self._paused += took
            self._extend(took - self._pause_left)

    def _extend(self, seconds: float) -> None:
        self.extension += seconds
        if self.scope is not None:
            self.scope.deadline += seconds

    @property
    def still_running(self) -> bool:
        """True if a function could not be stopped, and runs on."""
        return self.job is not None and self.job.left_behind


current_call: ContextVar[CallState | None] = ContextVar("current_call", default=None)
"""The call whose tool runs the present code."""


@asynccontextmanager
async def pause_deadlines(max_seconds: float) -> AsyncIterator[None]:
    """Stop the clocks of the tools and programs around a call that waits for a person.

    Args:
        max_seconds: Seconds that each of these runs may gain in all.
    """
    paused = []
    state = current_call.get()
    while state is not None:
        state.pause(max_seconds)
        paused.append(state)
        state = state.outer
    try:
        async with pause_deadline():
            yield
    finally:
        for each in paused:
            each.resume()


def record_usage(result: ExecutionResult) -> None:
    """Add a run in a cell to the usage of the present call.

    Tools that run programs in cells themselves call this.
    """
    state = current_call.get()
    if state is not None:
        state.add_cell_usage(result)
