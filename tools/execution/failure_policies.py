"""Policies for failing tools: retries, and a circuit breaker."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from toolcell.core import ToolExecutionError
from toolcell.core.text.counted import counted

_RetrySeconds = Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]


class RetryPolicy(BaseModel):
    """Tries a tool again when it failed or timed out.

    It applies to tools that are declared idempotent, and to no others: a payment
    that may have gone through is not made twice. Each attempt is admitted by the
    guard and charged on its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """Attempts in all; default 3. When it is reached the last failure is the result."""

    first_seconds: _RetrySeconds = 0.5
    """The longest pause before the second attempt, in seconds; it doubles each time."""

    longest_seconds: _RetrySeconds = 30.0
    """The longest pause, in seconds. When it is reached the pause grows no more."""

    def pause(self, attempt: int, chance: Callable[[], float] = random.random) -> float:
        """Return seconds to wait after an attempt that failed.

        Args:
            attempt: The number of the attempt that failed; 1 is the first.
            chance: Returns numbers from 0 to 1. Callers that failed together
                should not come back together.
        """
        return chance() * min(
            self.longest_seconds, self.first_seconds * 2.0 ** (attempt - 1)
        )


Circuit = Literal["closed", "open", "half_open"]
"""Closed: calls pass. Open: they are refused. Half-open: one call tries it out."""

CircuitOutcome = Literal["ok", "failed", "none"]
"""The end of a call; "none" says nothing about the tool."""


@dataclass(slots=True)
class _ToolCircuit:
    failures: int = 0
    opened_at: float | None = None
    openings: int = 0
    probing: bool = False


class CircuitBreaker:
    """Counts consecutive failures of each tool, and refuses calls to a failing one.

    Args:
        failure_threshold: Consecutive calls that fail or time out; default 5. When it
            is reached the circuit opens and calls are refused at once.
        recovery_seconds: Seconds for which the circuit is open; default 30. When it is
            reached one call may try: if it succeeds the circuit closes, if not it stays
            open as long again.
        clock: Returns seconds that do not go backwards.
    """

    def __init__(
        self,
        *,
        failure_threshold: int = 5,
        recovery_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threshold = failure_threshold
        self._recovery = recovery_seconds
        self._clock = clock
        self._tools: dict[str, _ToolCircuit] = {}

    def state(self, tool_name: str) -> Circuit:
        """Return the state of a tool's circuit."""
        tool = self._tools.get(tool_name)
        if tool is None or tool.opened_at is None:
            return "closed"
        return "half_open" if self._wait_left(tool) <= 0 else "open"

    def enter(self, tool_name: str) -> CircuitPass:
        """Let a call pass; its pass is ended with the outcome of the call.

        Raises:
            ToolExecutionError: The circuit is open, or another call tries it out.
        """
        tool = self._tools.setdefault(tool_name, _ToolCircuit())
        if tool.opened_at is None:
            return CircuitPass(tool, self._threshold, self._clock, probe=False)
        left = self._wait_left(tool)
        if left > 0 or tool.probing:
            raise ToolExecutionError(
                f"{tool_name} is not called after {counted(tool.failures, 'failure')}",
                hint="use another tool, or wait",
                details={"circuit": "open", "retry_after": max(0.0, round(left, 3))},
            )
        tool.probing = True
        return CircuitPass(tool, self._threshold, self._clock, probe=True)

    def _wait_left(self, tool: _ToolCircuit) -> float:
        if tool.opened_at is None:
            return 0.0
        return tool.opened_at + self._recovery - self._clock()


class CircuitPass:
    """The permission of one call."""

    def __init__(
        self,
        tool: _ToolCircuit,
        threshold: int,
        clock: Callable[[], float],
        *,
        probe: bool,
    ) -> None:
        self._tool = tool
        self._threshold = threshold
        self._clock = clock
        self._probe = probe
        self._openings = tool.openings

    def end(self, outcome: CircuitOutcome) -> None:
        """Record the outcome of the call."""
        tool = self._tool
        if self._probe:
            tool.probing = False
        if self._openings != tool.openings:
            # The call began before the circuit opened: it says nothing of the tool now.
            return
        if outcome == "ok":
            tool.failures, tool.opened_at = 0, None
        elif outcome == "failed":
            tool.failures += 1
            if tool.failures >= self._threshold:
                tool.opened_at = self._clock()
                tool.openings += 1
