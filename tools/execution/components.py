"""The parts that all calls of an executor share, and the run that calls belong to."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, Required, TypedDict

from toolcell.core import (
    ConfigError,
    InvalidInputError,
    Message,
    Part,
    ToolCall,
    ToolcellError,
)
from toolcell.guard import ActionGuard, CallFacts, Redactor
from toolcell.guard.spi import Via
from toolcell.sandbox import Sandbox

from ..definition.context import ArtifactSink, Progress, ToolContext
from ..definition.questions import AskUser
from ..definition.tool import Tool
from ..hooks.hook import Hook
from ..hooks.watcher import CallWatcher
from ..registry.registry import ToolRegistry
from ..stores.folder_artifacts import FolderArtifacts
from ..stores.idempotency import Idempotency, length_prefixed
from ..stores.records import HeldRecords, Records
from .attempt import Attempt
from .failure_policies import CircuitBreaker, RetryPolicy
from .runner import ToolRunner

_MAX_FACTS = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The agent's run, as tools and the guard may know it besides the call."""

    run_id: str | None = None
    """Results of idempotent tools are handed out within a run, not across runs."""

    turn: str | None = None
    """The model's turn within the run."""

    via: Via = "model"
    """The way by which its calls come: a model asks for them, or a program makes
    them."""

    session: str | None = None
    """The client's session: programs and files of one agent and session stay from call
    to call. None: each program has its own cell, and there are no files."""

    approval_seconds: float | None = None
    """Seconds for which a call may wait for a person; 0 asks no one. When it is reached
    the call is denied. None: the limit of the guard's approvals."""

    park_approvals: bool = False
    """True: the request for approval of a call that nobody answered in time stays open,
    and the call's error names it as `approval_id`; the same call finds its answer."""

    messages: tuple[Message, ...] = ()
    confidence: float = 0.0
    """From 0 to 1."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    on_progress: Callable[[Progress], None] | None = None
    """Called as tools report; from a worker thread where they run in one."""

    on_start: Callable[[], Awaitable[None]] | None = None
    """Awaited once for each call that is not refused at once, after it has waited for
    its turn, and before anything is known or done about it."""

    ask_user: AskUser | None = None
    """Asks the user at the client of its calls what MCP servers want to know; None:
    the client cannot do so."""

    artifacts: ArtifactSink | Path | str | None = None
    """Takes the artifacts of its calls: a sink, or a folder of the host, made if it is
    missing. Files in a folder are not replaced: a name that is taken gets a number."""

    def __post_init__(self) -> None:
        seconds = self.approval_seconds
        if seconds is not None and not 0 <= seconds < math.inf:
            raise InvalidInputError(
                f"a call cannot wait {seconds} seconds for a person",
                hint="name a finite number, 0 or more",
            )


class ExecutorOptions(TypedDict, total=False):
    """Options of every executor; see `ToolExecutor`."""

    guard: Required[ActionGuard | None]
    sandbox: Sandbox | None
    records: Records | None
    idempotency: Idempotency | None
    hooks: Sequence[Hook]
    watcher: CallWatcher | None
    retries: Mapping[str, RetryPolicy] | None
    circuit_breaker: CircuitBreaker | None
    redactor: Redactor | None
    timeout_seconds: float
    max_threads: int
    raise_on_error: bool
    tell_remaining: bool
    clock: Callable[[], datetime] | None


def _sink(given: ArtifactSink | Path | str | None) -> ArtifactSink | None:
    return FolderArtifacts(given) if isinstance(given, str | Path) else given


def check_executor(
    registry: object, guard: object, timeout_seconds: float, max_threads: int
) -> None:
    """Check what an executor is made of, before a call finds it out.

    Raises:
        ConfigError: A number is out of range, or a part is something else.
    """
    if not isinstance(registry, ToolRegistry):
        raise ConfigError(
            f"registry is a ToolRegistry, not of type {type(registry).__name__}",
            hint="write ToolRegistry([...]) around the tools",
        )
    if guard is not None and not isinstance(guard, ActionGuard):
        raise ConfigError(
            f"guard is an ActionGuard, not of type {type(guard).__name__}",
            hint="write ActionGuard([...]) around the policies",
        )
    if not 0 < timeout_seconds < math.inf or max_threads < 1:
        raise ConfigError(
            "timeout_seconds must be above 0, max_threads at least 1",
            hint="leave them out for the defaults",
        )


def first_facts(tool: Tool, via: Via) -> CallFacts:
    """Return the facts about calls of a tool that are known before there is one."""
    return CallFacts(
        version=tool.version,
        tags=frozenset(tool.tags),
        via=via,
        callers=frozenset(tool.callers),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorComponents:
    """The guard, runner, stores and limits that all calls of one executor share."""

    guard: ActionGuard | None
    runner: ToolRunner
    records: HeldRecords
    idempotency: Idempotency
    hooks: Sequence[Hook]
    watcher: CallWatcher | None
    retries: Mapping[str, RetryPolicy]
    circuit_breaker: CircuitBreaker | None
    redactor: Redactor
    timeout_seconds: float
    tell_remaining: bool
    clock: Callable[[], datetime] | None
    facts: dict[int, tuple[Tool, RunContext, CallFacts]] = field(default_factory=dict)
    """The facts of the last run of each tool, by the tool's id."""

    def now(self) -> datetime:
        """Return the time, with its zone."""
        return datetime.now(UTC) if self.clock is None else self.clock()

    def seconds_of(self, tool: Tool) -> float:
        """Return the seconds after which a call of a tool is stopped."""
        return self.timeout_seconds if tool.timeout is None else tool.timeout

    async def refuse_unknown(self, call: ToolCall, error: ToolcellError) -> NoReturn:
        """Record a call that no tool is there for, and raise the error."""
        if self.guard is not None:
            await self.guard.record_unknown(call)
        raise error

    def facts_of(self, tool: Tool, run: RunContext) -> CallFacts:
        """Return the facts about a call that the guard judges.

        Calls of one tool in one run get the same object: the guard's caches compare it
        by identity.
        """
        known = self.facts.get(id(tool))
        if known is not None and known[0] is tool and known[1] is run:
            return known[2]
        if len(self.facts) >= _MAX_FACTS:
            self.facts.clear()
        facts = CallFacts(
            version=tool.version,
            tags=frozenset(tool.tags),
            via=run.via,
            callers=frozenset(tool.callers),
            definition_hash=tool.definition_hash,
            cost=self.runner.max_cost(tool, self.seconds_of(tool)),
            run_id=run.run_id,
            turn=run.turn,
            requires_approval=tool.requires_approval,
            approval_seconds=run.approval_seconds,
            park=run.park_approvals,
        )
        self.facts[id(tool)] = (tool, run, facts)
        return facts

    def tool_context(
        self,
        call: ToolCall,
        tool: Tool,
        run: RunContext,
        config: Mapping[str, Any],
        attempt: Attempt,
    ) -> ToolContext:
        """Return the context of one attempt at a call, for tools that take one."""
        attempt.state.parts = parts = list[Part]()
        context = ToolContext(
            call_id=call.id,
            tool_name=tool.name,
            agent_id=call.agent_id,
            parent_id=call.parent_id,
            run_id=run.run_id,
            turn=run.turn,
            session=run.session,
            approval_seconds=run.approval_seconds,
            idempotency_key=f"{length_prefixed(call.agent_id)}/{call.id}",
            attempt=attempt.number,
            deadline=time.monotonic() + self.seconds_of(tool),
            messages=run.messages,
            confidence=run.confidence,
            metadata=run.metadata,
            config=config,
            on_progress=run.on_progress,
            on_cost=attempt.state.add_reported_cost,
            artifacts=_sink(run.artifacts),
            parts=parts,
        )
        if self.clock is not None:
            context.clock = self.clock
        return context

    def approval_seconds(self, run: RunContext) -> float:
        """Return the seconds a call may wait for a person; 0: no one is asked."""
        if run.approval_seconds is not None:
            return run.approval_seconds
        return 0.0 if self.guard is None else self.guard.approval_seconds
