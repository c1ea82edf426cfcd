"""Runs an admitted tool to its end or deadline: on the loop, in a thread or cell."""

from __future__ import annotations

import inspect
import math
import time
import types
from functools import partial
from typing import Any

import anyio
from pydantic import JsonValue
from pydantic_core import PydanticSerializationError, to_jsonable_python

from toolcell.core import (
    CallFailedError,
    ConfigError,
    ToolExecutionError,
    ToolNotFoundError,
    ToolTimeoutError,
)
from toolcell.sandbox import ExecutionResult, Limits, Network, Sandbox
from toolcell.sandbox.spi import OpaqueValue, RequestGate

from ..definition.context import ToolContext
from ..definition.tool import FunctionTool, Tool
from ..definition.transfer import build_cell_call
from ..definition.validation import Arguments
from ..registry.registry import ToolRegistry
from .attempt import CallState, current_call
from .call_errors import TRY_OTHERS, cancelled_itself
from .stepping import CALLERS_TASK, AnyCoroutine, ScopeFactory, TaskCancels, run_until
from .threads import Workers

_MEASURED = ("wall_ms", "cpu_ms", "bytes")
_PLAIN = (str, int, bool, type(None))
# What Python writes as text without being asked to: 4,300 digits.
_MAX_INT_BITS = 14_284


def max_cpu_ms(limits: Limits, wall_seconds: float) -> int:
    """Return the most CPU time that a run in a cell can use, in milliseconds."""
    # Affinity gives whole processors.
    most = wall_seconds * math.ceil(limits.cpus)
    if limits.cpu_seconds is not None:
        most = min(most, limits.cpu_seconds)
    return math.ceil(most * 1000)


def max_run_bytes(limits: Limits, network: Network) -> int:
    """Return the bytes of output and network that a run in a cell may cost."""
    reach = limits.network_bytes if network.mode != "none" else 0
    return 2 * limits.output_bytes + reach


class ToolRunner:
    """Runs the tools of a registry, within their limits.

    An async function runs on the event loop, a plain one in a worker thread, a tool
    declared `sandboxed` in its own cell. The runner holds the deadline, measures
    the usage and turns what a tool does to its surroundings (it cancels its task, it
    raises SystemExit) into an error of that call alone.

    Args:
        registry: Knows which runs there are, so that a tool can be taken away.
        workers: The threads for plain functions.
        sandbox: The cells for sandboxed tools; None: such tools fail.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        workers: Workers,
        sandbox: Sandbox | None,
    ) -> None:
        self._registry = registry
        self._workers = workers
        self._sandbox = sandbox
        self._new_scope = ScopeFactory()

    def max_cost(self, tool: Tool, seconds: float) -> dict[str, int | str]:
        """Return the maximum that a call may use, by unit, as far as it is known."""
        cost: dict[str, int | str] = {"wall_ms": math.ceil(seconds * 1000), "cpu_ms": 0}
        if tool.sandboxed and self._sandbox is not None:
            config = self._sandbox.config
            limits = config.limits
            cost["cpu_ms"] = max_cpu_ms(limits, min(seconds, limits.wall_seconds))
            cost["bytes"] = max_run_bytes(limits, config.network)
        return cost | dict(tool.cost) if tool.cost else cost

    async def run(
        self,
        tool: Tool,
        arguments: Arguments,
        context: ToolContext | None,
        state: CallState,
        seconds: float,
        *,
        cancels: TaskCancels = CALLERS_TASK,
    ) -> Any:
        """Return what the tool returns.

        Args:
            tool: The tool.
            arguments: Its validated arguments.
            context: The value for its `ToolContext` parameters, if it has any.
            state: Takes up the usage of the run and where it ran.
            seconds: The deadline.
            cancels: Tells cancellations from outside from the tool's own.

        Raises:
            ToolTimeoutError: It was stopped at its deadline.
            ToolNotFoundError: It was taken out of the registry with what it runs.
            Exception: Whatever the tool raises.
        """
        began = time.perf_counter()
        state.outer = current_call.get()
        token = current_call.set(state)
        for unit, amount in tool.cost.items():
            # The declared maximum, of units that nobody measures.
            if unit not in _MEASURED:
                state.usage[unit] = amount
        scope = self._new_scope()
        run = self._registry.track_run(tool, scope.cancel)
        try:
            with scope, run:
                try:
                    work = self._start(tool, arguments, context, state, seconds)
                    # In a cell the kernel holds the deadline, and the wait for a cell
                    # is not the tool's time.
                    deadline = None if tool.sandboxed else began + seconds
                    return await run_until(work, scope, deadline, state)
                except Exception:
                    raise
                except BaseException as error:
                    _contain(error, tool.name, context, cancels)
                    raise
        finally:
            current_call.reset(token)
            wall = math.ceil((time.perf_counter() - began) * 1000)
            state.usage["wall_ms"] = wall
        if run.retired:
            raise ToolNotFoundError(
                f"{tool.name} was taken away while it ran",
                hint="list the tools again, and use one of them",
            )
        raise _out_of_time(tool.name, seconds, still_running=state.still_running)

    def _start(
        self,
        tool: Tool,
        arguments: Arguments,
        context: ToolContext | None,
        state: CallState,
        seconds: float,
    ) -> AnyCoroutine:
        """Return the run of a tool, to be awaited."""
        if tool.sandboxed:
            return self._in_cell(tool, arguments, state, seconds)
        if tool.blocking:
            return self._in_thread(tool, arguments, context, state)
        state.backend = "loop"
        work = tool.call(arguments, context)
        return work if type(work) is types.CoroutineType else _awaited(work)

    async def _in_thread(
        self,
        tool: Tool,
        arguments: Arguments,
        context: ToolContext | None,
        state: CallState,
    ) -> Any:
        state.backend = "thread"
        work = partial(tool.call, arguments, context)
        state.job = self._workers.job(state.agent, work)
        value = await state.job.run()
        return await value if inspect.isawaitable(value) else value

    async def _in_cell(
        self, tool: Tool, arguments: Arguments, state: CallState, seconds: float
    ) -> JsonValue:
        if self._sandbox is None:
            raise ConfigError(
                f"{tool.name} is sandboxed and the executor has no sandbox",
                hint="pass sandbox=SandboxManager(...)",
            )
        result, wall = await run_in_cell(
            *(self._sandbox, tool, arguments, seconds),
            agent_id=state.agent or None,
            gate=state.gate,
        )
        state.add_cell_usage(result)
        return content_of(tool.name, result, wall)


async def _awaited(work: Any) -> Any:
    return await work


def _contain(
    error: BaseException, name: str, context: ToolContext | None, cancels: TaskCancels
) -> None:
    """Turn what would end more than this call into an error of this call."""
    if isinstance(error, anyio.get_cancelled_exc_class()):
        if context is not None:
            context.cancel()
        if not cancels.are_from_outside():
            raise cancelled_itself(name) from None
    elif isinstance(error, SystemExit | KeyboardInterrupt):
        raise ToolExecutionError(
            f"{name} failed ({type(error).__name__})",
            hint="try other arguments or another tool",
        ) from error


def _out_of_time(name: str, seconds: float, *, still_running: bool) -> ToolTimeoutError:
    details: dict[str, Any] = {"timeout_seconds": seconds}
    hint = None
    if still_running:
        details["still_running"] = True
        hint = "its function could not be stopped and runs on"
    return ToolTimeoutError(
        f"{name} did not end within {seconds:g} s", hint=hint, details=details
    )


def as_json(name: str, value: Any) -> JsonValue:
    """Return a tool's value as JSON values.

    Raises:
        ToolExecutionError: It is not JSON.
    """
    if type(value) in _PLAIN:
        if type(value) is int and value.bit_length() > _MAX_INT_BITS:
            raise ToolExecutionError(
                f"{name} returned a number of too many digits",
                hint="its function has to return large numbers as text",
            )
        return value  # type: ignore[no-any-return]
    try:
        content: JsonValue = to_jsonable_python(
            value, inf_nan_mode="constants", bytes_mode="base64"
        )
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise ToolExecutionError(
            f"{name} returned what is not JSON ({type(value).__name__})",
            hint="its function has to return None, bool, int, float, str, list or dict",
        ) from error
    return content


async def run_in_cell(
    sandbox: Sandbox,
    tool: Tool,
    arguments: Arguments,
    seconds: float,
    *,
    agent_id: str | None,
    gate: RequestGate | None,
) -> tuple[ExecutionResult, float]:
    """Return the run of a tool's function in a new cell, and the seconds it had.

    A program and JSON go in, JSON comes out: the host loads nothing that a cell sends.

    Raises:
        ConfigError: The function cannot be sent into a cell.
        SandboxError: It could not be run.
    """
    if not isinstance(tool, FunctionTool):
        raise ConfigError(
            f"{tool.name} is no function and cannot run in a cell",
            hint="leave out `sandboxed`, or make a tool of a function",
        )
    program = build_cell_call(tool.name, tool.function, arguments.json)
    wall = min(seconds, sandbox.config.limits.wall_seconds)
    limits = Limits(wall_seconds=wall)
    result = await sandbox.run(
        program.code,
        inputs=program.inputs,
        limits=limits,
        agent_id=agent_id,
        gate=gate,
        # The code of the operator meets nothing that a program of the agent left.
        minimum_freshness="cell",
    )
    return result, wall


def content_of(name: str, result: ExecutionResult, seconds: float) -> JsonValue:
    """Return the value of a run that ended well.

    Raises:
        ToolTimeoutError: The run was killed at its deadline.
        ToolExecutionError: The run ended in another way, or its value is not JSON.
    """
    if result.is_out_of_time:
        raise ToolTimeoutError(
            f"{name} was stopped after {seconds:g} s ({result.status})",
            hint="ask for less in one call, or give the tool more seconds",
            details={"run_status": result.status},
        ) from _program_error(name, result)
    if result.status != "ok":
        what = result.exception.type if result.exception else result.status
        raise ToolExecutionError(
            f"{name} failed ({what})",
            hint=TRY_OTHERS,
            details={"run_status": result.status},
        ) from _program_error(name, result)
    if isinstance(result.value, OpaqueValue):
        raise ToolExecutionError(
            f"{name} returned what is not JSON",
            hint="its function has to return None, bool, int, float, str, list or dict",
        )
    value: Any = result.value
    return value  # type: ignore[no-any-return]


def _program_error(name: str, result: ExecutionResult) -> CallFailedError:
    """Return the program's own text, for the record and not for the model."""
    text = result.exception.traceback if result.exception else result.stderr
    return CallFailedError(
        f"{name} in its cell:\n{text}", result=result, hint=TRY_OTHERS
    )
