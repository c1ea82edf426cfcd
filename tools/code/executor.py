"""Runs programs whose code calls tools."""

from __future__ import annotations

import keyword
import logging
import re
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from types import EllipsisType
from typing import Any, Literal, overload

from toolcell.core import ConfigError, InvalidInputError, ToolCall, ToolExecutionError
from toolcell.guard import ActionGuard
from toolcell.sandbox import (
    ExecutionResult,
    HostCalls,
    Limits,
    Sandbox,
    SandboxSession,
)
from toolcell.sandbox.spi import RequestGate

from ..definition.tool import Tool
from ..execution.attempt import record_usage
from ..execution.components import RunContext
from ..execution.executor import ConcurrentExecutor, ToolExecutor
from ..export.python_stubs import stub
from ..registry.registry import ToolRegistry
from .program_calls import (
    ProgramCall,
    ProgramCallHandler,
    ProgramNesting,
    current_program,
)

_log = logging.getLogger("toolcell.tools")
_ASKS_NOBODY = RunContext(approval_seconds=0)
_ASKS = RunContext()
_TAKEN = frozenset({"tools", "ToolError"})


class CodeResult(ExecutionResult):
    """One run of a program, and the calls that it made."""

    id: str
    """The `parent_id` of the calls, in records too."""

    calls: tuple[ProgramCall, ...] = ()
    """The calls that were really made, in the order in which they came in. The host
    records them; nothing that a program says changes them."""


class CodeExecutor:
    """Runs programs in cells, where `tools.<name>(...)` calls the tools of a registry.

    A model that writes one program instead of ten calls saves nine round trips, and
    gains nothing else by it: each call of the program is a call of its agent, looked
    up, validated, guarded and recorded. A refused or failed call is a `ToolError` in
    the program, with a `code`. Agent, ids and depth of a call come from the host; the
    program supplies a name and arguments only.

    Args:
        sandbox: The cells for programs; open, and closed by its owner.
        registry: The tools. A program is offered those that its agent may see.
        guard: Decides which agent may do what. None calls tools without one: write it
            only where every caller may do everything.
        executor: Makes the calls, in place of `guard`; of the same registry.
        max_calls: Calls of one run, those of programs inside it included; default 100.
            When it is reached further calls fail with the code `too_many`.
        max_concurrency: Calls of one run at once; default 8. When it is reached further
            calls wait.
        max_depth: Programs inside programs; default 2, and 1 lets no tool run a
            program. When it is reached the tool that tries fails.

    Raises:
        ConfigError: A number is below 1, or guard and executor contradict.
    """

    @overload
    def __init__(
        self,
        sandbox: Sandbox,
        registry: ToolRegistry,
        *,
        guard: ActionGuard | None,
        max_calls: int = ...,
        max_concurrency: int = ...,
        max_depth: int = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        sandbox: Sandbox,
        registry: ToolRegistry,
        *,
        executor: ToolExecutor,
        max_calls: int = ...,
        max_concurrency: int = ...,
        max_depth: int = ...,
    ) -> None: ...

    def __init__(
        self,
        sandbox: Sandbox,
        registry: ToolRegistry,
        *,
        guard: ActionGuard | EllipsisType | None = ...,
        executor: ToolExecutor | None = None,
        max_calls: int = 100,
        max_concurrency: int = 8,
        max_depth: int = 2,
    ) -> None:
        if min(max_calls, max_concurrency, max_depth) < 1:
            raise ConfigError(
                "max_calls, max_concurrency and max_depth are at least 1",
                hint="give whole numbers from 1 on, or leave them out",
            )
        self.executor = _executor(sandbox, registry, guard, executor)
        self._sandbox = sandbox
        self._registry = registry
        self._max_calls = max_calls
        self._max_concurrency = max_concurrency
        self._max_depth = max_depth
        self._told_of: set[str] = set()
        """Names in Python of two tools, which the log has."""

    async def execute(
        self,
        code: str,
        *,
        agent_id: str | None = None,
        language: Literal["python", "bash", "node"] = "python",
        extra_namespace: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        session: SandboxSession | None = None,
        call_id: str | None = None,
        run: RunContext | None = None,
        on_output: Callable[[str, bytes], None] | None = None,
        gate: RequestGate | None = None,
    ) -> CodeResult:
        """Run a program; calls that are unfinished at its end are cancelled.

        Args:
            code: The program's text.
            agent_id: The agent of the program and of every call in it.
            language: Its language. In bash the program `tools` makes the calls.
            extra_namespace: JSON values that become variables of the program.
            limits: Narrower limits for this run; None takes the sandbox's.
            session: The session to run in, with the variables of earlier programs.
                None takes a new cell.
            call_id: The call that asked for the program, which becomes the parent of
                its calls. None makes an id.
            run: The agent's run, as tools and the guard may know it. None: calls that
                need a person's approval wait for it in a session, and are denied at
                once elsewhere. While a call waits, the program's wall clock stands
                still, for `approval_seconds` of a run in all.
            on_output: Called with the stream's name and bytes as output arrives.
            gate: Judges the program's requests to a guarded network. None: the
                executor's guard does, as acts of the agent in `run`.

        Raises:
            InvalidInputError: The arguments cannot be used, or the session is
                another agent's.
            ToolExecutionError: It would be one program too many inside another.
            SandboxError: It could not be run; the records have the calls it made.
        """
        if session is not None and session.agent_id != agent_id:
            raise InvalidInputError(
                "the session is not this agent's",
                hint="open one with sandbox.session(agent_id=...)",
            )
        if run is None:
            run = _ASKS_NOBODY if session is None else _ASKS
        handler, calls = self._handler(agent_id, call_id, run)
        inputs = _inputs(extra_namespace)
        if gate is None:
            gate = self.executor.request_gate(
                agent_id=agent_id, parent_id=handler.program_id, run=run
            )
        # A session is its agent's already.
        place = (
            partial(self._sandbox.run, agent_id=agent_id)
            if session is None
            else session.run
        )
        result = await place(
            code,
            language=language,
            inputs=inputs,
            limits=limits,
            calls=calls,
            on_output=on_output,
            gate=gate,
        )
        record_usage(result)
        return CodeResult.model_construct(
            **dict(result),
            id=handler.program_id,
            calls=tuple(handler.made()),
        )

    def command_calls(
        self,
        *,
        agent_id: str | None = None,
        call_id: str | None = None,
        run: RunContext | None = None,
    ) -> HostCalls:
        """Return the calls for one command, `session.exec(..., calls=...)`.

        Args:
            agent_id: The agent of every call; the session must be the same agent's.
            call_id: As for `execute`.
            run: As for `execute`; None: calls that need a person's approval wait.

        Raises:
            ToolExecutionError: As for `execute`.
        """
        return self._handler(agent_id, call_id, run or _ASKS)[1]

    def _handler(
        self, agent_id: str | None, call_id: str | None, run: RunContext
    ) -> tuple[ProgramCallHandler, HostCalls]:
        """Return the handler for the calls of a new program, and its limits."""
        nesting = self._nesting()
        prefix = uuid.uuid4().hex
        outer = ToolCall(id=call_id or prefix, name="program", agent_id=agent_id)
        tools = self._offered(agent_id)
        names = {name: tool.name for name, tool in tools.items()}
        handler = ProgramCallHandler(self.executor, names, outer, prefix, run, nesting)
        return handler, HostCalls(
            names=tuple(names),
            handler=handler.answer,
            max_calls=min(self._max_calls, nesting.budget.left),
            max_concurrency=self._max_concurrency,
            max_pause_seconds=self.executor.approval_seconds(run),
            describe=partial(_described, tools),
        )

    def describe_tools(self, agent_id: str | None = None) -> str:
        """Return Python stubs of the tools that an agent's program may call.

        They are for the prompt: each is a typed signature with a docstring. Tools that
        the guard always denies to the agent are left out, and so are two that have
        the same name in Python.
        """
        offered = self._offered(agent_id).items()
        may_call = self.executor.may_call
        return "\n\n".join(
            stub(name, tool)
            for name, tool in offered
            if may_call(agent_id, tool, via="code")
        )

    def _offered(self, agent_id: str | None) -> dict[str, Tool]:
        """Return the tools that a program may call, by names that Python can write.

        Two tools that are one name in Python are left out: which of them is meant is
        not known, and a server of tools must not end programs of everybody.
        """
        named: dict[str, list[Tool]] = {}
        for tool in self._registry.snapshot().for_agent(agent_id):
            if "code" in tool.callers:
                named.setdefault(python_name(tool.name), []).append(tool)
        for name, tools in named.items():
            if len(tools) > 1 and name not in self._told_of:
                self._told_of.add(name)
                both = " and ".join(tool.name for tool in tools)
                _log.warning("programs cannot call %s: both are %s there", both, name)
        return {name: tools[0] for name, tools in named.items() if len(tools) == 1}

    def _nesting(self) -> ProgramNesting:
        outer = current_program.get()
        nesting = (
            ProgramNesting.first(self._max_calls) if outer is None else outer.nested()
        )
        if nesting.depth > self._max_depth:
            raise ToolExecutionError(
                f"programs run {self._max_depth} deep inside each other, no deeper",
                hint="let the program do the work itself",
            )
        return nesting


async def _described(tools: Mapping[str, Tool], name: str) -> dict[str, Any]:
    """Return what `tools describe` prints of a tool."""
    tool = tools[name]
    about = {"name": name, "description": tool.description}
    return {**about, "parameters": tool.parameters}


def _executor(
    sandbox: Sandbox,
    registry: ToolRegistry,
    guard: ActionGuard | EllipsisType | None,
    executor: ToolExecutor | None,
) -> ToolExecutor:
    if executor is None:
        if isinstance(guard, EllipsisType):
            raise ConfigError(
                "a CodeExecutor needs a guard or an executor",
                hint="guard=None calls tools without one",
            )
        return ConcurrentExecutor(registry, guard=guard, sandbox=sandbox)
    if not isinstance(guard, EllipsisType):
        raise ConfigError("the executor has its own guard", hint="leave guard out")
    if executor.registry is not registry:
        raise ConfigError(
            "the executor calls the tools of another registry",
            hint="give both the same registry",
        )
    return executor


def _inputs(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return variables of a program; the sandbox checks that they are JSON."""
    inputs = dict(given or {})
    taken = sorted(_TAKEN & inputs.keys())
    if taken:
        raise InvalidInputError(
            f"{' and '.join(taken)} in extra_namespace would hide the tools",
            hint="rename it",
        )
    return inputs


def python_name(name: str) -> str:
    """Return the name of a tool in programs, where `.` and `-` become `_`."""
    name = re.sub(r"[.-]", "_", name)
    if not name[0].isalpha():
        name = f"tool_{name.lstrip('_')}"
    return f"{name}_" if keyword.iskeyword(name) else name
