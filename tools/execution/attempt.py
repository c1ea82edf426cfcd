"""What calls go through, and one try at a call as far as it has come."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from toolcell.core import (
    InvalidInputError,
    Message,
    ToolCall,
    ToolcellError,
    ToolResult,
)
from toolcell.guard import ActionGuard, CallFacts, Redactor

from ..definition.context import ArtifactSink, Progress
from ..definition.tool import Tool
from ..hooks.hook import Hook
from ..stores.idempotency import Idempotency
from ..stores.records import RecordedVerdict, Records, ToolExecutionRecord
from .circuit_breaker import CircuitBreaker
from .retries import RetryPolicy
from .runner import CallState, ToolRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What tools and the guard may know of the agent's run besides the call."""

    run_id: str | None = None
    """Results of idempotent tools are handed out within a run, not across runs."""

    turn: str | None = None
    """The model's turn within the run."""

    session: str | None = None
    """The client's session: programs and files of one agent and session stay from call
    to call. None: each program has a cell of its own, and there are no files."""

    approval_seconds: float | None = None
    """How long a call may wait for a person; 0 asks nobody. When it is reached the
    call is denied. None: as the guard's approvals say."""

    messages: tuple[Message, ...] = ()
    confidence: float = 0.0
    """From 0 to 1."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    on_progress: Callable[[Progress], None] | None = None
    """Called as tools report; from a worker thread where they run in one."""

    artifacts: ArtifactSink | None = None

    def __post_init__(self) -> None:
        seconds = self.approval_seconds
        if seconds is not None and not 0 <= seconds < math.inf:
            raise InvalidInputError(
                f"a call cannot wait {seconds} seconds for a person",
                hint="name a finite number, 0 or more",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorComponents:
    """What calls go through; made once, by the executor."""

    guard: ActionGuard | None
    runner: ToolRunner
    records: Records
    idempotency: Idempotency
    hooks: Sequence[Hook]
    retries: Mapping[str, RetryPolicy]
    circuit_breaker: CircuitBreaker | None
    redactor: Redactor
    timeout_seconds: float
    tell_remaining: bool
    clock: Callable[[], datetime] | None
    facts: dict[int, tuple[Tool, RunContext, CallFacts]] = field(default_factory=dict)
    """What the guard was told of the last call of each tool."""

    def approval_seconds(self, run: RunContext) -> float:
        """Return how long a call may wait for a person; 0: nobody is asked."""
        if run.approval_seconds is not None:
            return run.approval_seconds
        return 0.0 if self.guard is None else self.guard.approval_seconds


class Attempt:
    """One try at a call, as far as it has come."""

    tool: Tool | None = None
    verdict: RecordedVerdict = "not_asked"
    replayed = False
    edited: Mapping[str, Any] | None = None
    """The arguments that a person put in the place of those that were sent."""

    retry = False
    """Whether another attempt follows."""

    def __init__(self, started_at: datetime, number: int = 1) -> None:
        self.started_at = started_at
        self.number = number
        self.began = time.perf_counter()
        self.state = CallState()

    def record(
        self,
        call: ToolCall,
        result: ToolResult,
        error: ToolcellError | None,
        redactor: Redactor,
    ) -> ToolExecutionRecord:
        """Return the record of this attempt, now that it has ended."""
        tool = self.tool
        shown: Any = redactor(call.arguments if self.edited is None else self.edited)
        # By position, in the order of the fields: by name it takes twice as long.
        return ToolExecutionRecord(
            call.id,
            call.name if tool is None else tool.name,
            call.agent_id,
            call.parent_id,
            None if tool is None else tool.version,
            shown,
            self.verdict,
            result.status,
            self.started_at,
            (time.perf_counter() - self.began) * 1000,
            redactor(result.content),
            None if error is None else error.kind,
            self._reason(error),
            None if error is None else _story(error, redactor),
            _shared(tuple(self.state.usage.items())),
            self.state.backend,
            self.number,
            not self.retry,
            self.replayed,
            self.state.still_running,
        )

    def _reason(self, error: ToolcellError | None) -> str | None:
        if error is None or self.verdict != "denied":
            return None
        return str(error.details.get("reason") or error.kind)


# Most calls of a tool use the same, and each object that stays is one more for Python
# to look through when it looks for garbage.
@lru_cache(maxsize=1024)
def _shared(usage: tuple[tuple[str, int | str], ...]) -> Mapping[str, int | str]:
    return MappingProxyType(dict(usage))


def _story(error: ToolcellError, redactor: Redactor) -> str:
    return redactor.text("".join(traceback.format_exception(error)))
