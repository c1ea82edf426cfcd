"""The calls that one program makes, each through the executor."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel, ConfigDict

from toolcell.core import (
    ToolCall,
    ToolcellError,
    ToolExecutionError,
    ToolResult,
    ToolValidationError,
)
from toolcell.core.text.counted import counted

from ..definition.tool import Tool
from ..execution.components import RunContext
from ..execution.executor import ToolExecutor


class ProgramCall(BaseModel):
    """A call that a program made, as it went through the executor."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    call: ToolCall
    """The call: its `parent_id` is the id of the run, its arguments are named."""

    result: ToolResult
    duration_ms: float
    """Milliseconds, waiting for the guard included."""


@dataclass(slots=True)
class CallBudget:
    """Calls that a program may still make, with all programs inside it."""

    left: int


@dataclass(frozen=True, slots=True)
class ProgramNesting:
    """The depth of a program inside others, and the calls left to all of them."""

    depth: int
    budget: CallBudget

    @classmethod
    def first(cls, calls: int) -> ProgramNesting:
        """Return the place of a program that is inside no other."""
        return cls(1, CallBudget(calls))

    def nested(self) -> ProgramNesting:
        """Return the place of a program inside this one: the budget is the same."""
        return ProgramNesting(self.depth + 1, self.budget)


current_program: ContextVar[ProgramNesting | None] = ContextVar(
    "current_program", default=None
)
"""The program whose call runs the present code."""


def is_nested_call() -> bool:
    """Tell whether a running program made the present call."""
    return current_program.get() is not None


class ProgramCallHandler:
    """Answers the calls of one program.

    Agent, parent and ids are the host's. A program supplies the arguments, and a name
    that is in the table.

    Args:
        executor: Makes the calls.
        names: The tools' own names, by those that the program uses.
        outer: The run of the program, as the parent of its calls.
        prefix: The beginning of the ids of calls; unique to this run, so that no call
            replays another one's result.
        run: The agent's run.
        nesting: The depth of the program, and the calls left to it.
    """

    def __init__(
        self,
        executor: ToolExecutor,
        names: Mapping[str, str],
        outer: ToolCall,
        prefix: str,
        run: RunContext,
        nesting: ProgramNesting,
    ) -> None:
        self._executor = executor
        self._names = names
        self._outer = outer
        self._prefix = prefix
        self._run = replace(run, via="code")
        self._nesting = nesting
        self._made: list[_PendingCall] = []
        self.program_id = outer.id
        """The `parent_id` of the calls."""

    async def answer(
        self, name: str, arguments: list[Any], options: dict[str, Any]
    ) -> dict[str, Any]:
        """Make a call for the program; `HostCalls.handler`."""
        budget = self._nesting.budget
        if budget.left < 1:
            return _error("too_many", "the runs around this one have made their calls")
        budget.left -= 1
        made = _PendingCall(self._call(name))
        self._made.append(made)
        token = current_program.set(self._nesting)
        try:
            made.result = await self._outcome(made, arguments, options)
        finally:
            current_program.reset(token)
            made.duration_ms = (time.perf_counter() - made.began) * 1000
        error = made.result.error
        if error is None:
            return {"value": made.result.content}
        text = f"{error.message} ({error.hint})" if error.hint else error.message
        return _error(error.kind, text, error.details.get("retry_after"))

    def made(self) -> list[ProgramCall]:
        """Return the calls in the order in which they came in."""
        return [call.to_program_call() for call in self._made]

    def _call(self, name: str) -> ToolCall:
        return ToolCall(
            id=f"{self._prefix}-{len(self._made) + 1}",
            name=self._names[name],
            agent_id=self._outer.agent_id,
            parent_id=self._outer.id,
        )

    async def _outcome(
        self, made: _PendingCall, arguments: list[Any], options: dict[str, Any]
    ) -> ToolResult:
        call = made.call
        view = self._executor.registry.snapshot().for_agent(call.agent_id)
        try:
            # If the tool is gone meanwhile, the executor refuses the call.
            tool = view.get(call.name)
            named = options if tool is None else _named(tool, arguments, options)
            made.call = ToolCall(**{**dict(call), "arguments": named})
        except ToolcellError as error:
            return self._executor.refuse(call, error)
        return await self._executor.call(made.call, run=self._run, raise_on_error=False)


@dataclass(slots=True)
class _PendingCall:
    """A call that may not have ended yet."""

    call: ToolCall
    result: ToolResult | None = None
    began: float = field(default_factory=time.perf_counter)
    duration_ms: float = 0.0

    def to_program_call(self) -> ProgramCall:
        result = self.result
        if result is None:
            stopped = ToolExecutionError(
                "the call was cancelled",
                hint="look whether it took effect before you call it again",
            )
            call = self.call
            result = ToolResult.failed(call.id, call.name, stopped, status="cancelled")
        return ProgramCall(call=self.call, result=result, duration_ms=self.duration_ms)


def _named(tool: Tool, arguments: list[Any], options: dict[str, Any]) -> dict[str, Any]:
    """Give positional arguments the names of the schema's properties, in order.

    Raises:
        ToolValidationError: There are more than properties, or one is given twice.
    """
    names = list(tool.parameters.get("properties", {}))
    if len(arguments) > len(names):
        taken = counted(len(names), "argument")
        raise ToolValidationError(
            f"{tool.name} takes {taken}, {len(arguments)} were given",
            hint=f"it takes {', '.join(names) or 'none'}",
        )
    placed = dict(zip(names, arguments, strict=False))
    twice = sorted(placed.keys() & options.keys())
    if twice:
        raise ToolValidationError(
            f"{tool.name} got {', '.join(twice)} twice",
            hint="give each argument once, by position or by name",
        )
    return {**placed, **options}


def _error(code: str, message: str, retry_after: Any = None) -> dict[str, Any]:
    error: dict[str, Any] = {"code": code, "message": message}
    if isinstance(retry_after, int | float):
        error["retry_after"] = retry_after
    return {"error": error}
