"""Runs an admitted tool to its end or its deadline, wherever it belongs."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
import types
from collections.abc import AsyncIterator, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from decimal import Decimal
from functools import partial
from typing import Any

import anyio
from pydantic import JsonValue
from pydantic_core import PydanticSerializationError, to_jsonable_python

from toolcell.core import (
    ConfigError,
    ToolExecutionError,
    ToolNotFoundError,
    ToolTimeoutError,
)
from toolcell.sandbox import (
    ExecutionResult,
    Limits,
    Network,
    SandboxManager,
    pause_deadline,
)

from ..definition.context import ToolContext
from ..definition.tool import Tool
from ..definition.validation import Arguments
from ..registry.registry import ToolRegistry
from .sandboxed import content_of, run_in_cell
from .threads import ThreadJob, Workers

_MEASURED = ("wall_ms", "cpu_ms", "bytes")
_PLAIN = (str, int, bool, type(None))
# What Python writes as text without being asked to: 4,300 digits.
_MAX_INT_BITS = 14_284


Work = Coroutine[Any, Any, Any]
HeldSlots = frozenset[int]
"""The slots that a call and the calls around it hold."""

NO_SLOTS: HeldSlots = frozenset()


class CallState:
    """What is known of a run while it goes on, also when it is torn down."""

    held: HeldSlots = NO_SLOTS
    backend: str | None = None
    job: ThreadJob | None = None
    cpu_ms = 0
    bytes = 0
    said: frozenset[str] = frozenset()
    """Units of which the tool itself has told what it spent."""

    outer: CallState | None = None
    """The run of the tool that made this call."""

    scope: anyio.CancelScope | None = None
    """Ends the run at its deadline, once that is set."""

    gained = 0.0
    """Seconds by which the deadline is moved."""

    _pauses = 0
    _paused = _pause_began = _pause_left = 0.0

    def __init__(self) -> None:
        self.usage: dict[str, int | str] = {}

    def add_cell_usage(self, result: ExecutionResult) -> None:
        """Add what a run in a cell used."""
        self.backend = result.backend
        self.cpu_ms += math.ceil(result.usage.cpu_ms)
        self.bytes += len(result.stdout_bytes) + len(result.stderr_bytes)
        self.bytes += result.usage.network_bytes
        self.usage |= {"cpu_ms": self.cpu_ms, "bytes": self.bytes}

    def spend(self, cost: Mapping[str, int | str]) -> None:
        """Add what the tool says that it spent; the first word replaces the maximum."""
        for unit, amount in cost.items():
            before = self.usage[unit] if unit in self.said else 0
            total = Decimal(before) + Decimal(amount)
            self.usage[unit] = f"{total:f}" if unit == "usd" else int(total)
        self.said |= cost.keys()

    def pause(self, max_seconds: float) -> None:
        """Stop the clock of the deadline, for so many seconds of the run in all."""
        self._pauses += 1
        if self._pauses == 1:
            self._pause_began = anyio.current_time()
            self._pause_left = max(max_seconds - self._paused, 0.0)
            self._gain(self._pause_left)

    def resume(self) -> None:
        """Start the clock again, once for each `pause`."""
        self._pauses -= 1
        if self._pauses == 0:
            took = min(anyio.current_time() - self._pause_began, self._pause_left)
            self._paused += took
            self._gain(took - self._pause_left)

    def _gain(self, seconds: float) -> None:
        self.gained += seconds
        if self.scope is not None:
            self.scope.deadline += seconds

    @property
    def still_running(self) -> bool:
        """Whether a function runs on that could not be stopped."""
        return self.job is not None and self.job.left_behind


current_call: ContextVar[CallState | None] = ContextVar("current_call", default=None)
"""The run of the tool in whose code we are."""


@asynccontextmanager
async def pause_deadlines(max_seconds: float) -> AsyncIterator[None]:
    """Stop the clocks of the tools and programs around a call that waits for a person.

    Args:
        max_seconds: Seconds that each run around it may gain in all.
    """
    stopped = []
    state = current_call.get()
    while state is not None:
        state.pause(max_seconds)
        stopped.append(state)
        state = state.outer
    try:
        async with pause_deadline():
            yield
    finally:
        for each in stopped:
            each.resume()


def record_usage(result: ExecutionResult) -> None:
    """Say of the call that runs now what its run in a cell used, and where it was.

    For tools that run programs in cells themselves.
    """
    state = current_call.get()
    if state is not None:
        state.add_cell_usage(result)


def max_run_bytes(limits: Limits, network: Network) -> int:
    """Return the bytes of output and network that a run in a cell may cost."""
    reach = limits.network_bytes if network.mode == "allow" else 0
    return 2 * limits.output_bytes + reach


class ToolRunner:
    """Runs functions on the event loop, in threads, or in cells."""

    def __init__(
        self,
        registry: ToolRegistry,
        workers: Workers,
        sandbox: SandboxManager | None,
    ) -> None:
        self._registry = registry
        self._workers = workers
        self._sandbox = sandbox
        self._scope_class: type[anyio.CancelScope] | None = None

    def max_cost(self, tool: Tool, seconds: float) -> dict[str, int | str]:
        """Return the most that a call may use, by unit, as far as it is known."""
        cost: dict[str, int | str] = {"wall_ms": math.ceil(seconds * 1000), "cpu_ms": 0}
        if tool.sandboxed and self._sandbox is not None:
            config = self._sandbox.config
            limits = config.limits
            cost["cpu_ms"] = math.ceil(seconds * 1000 * max(1.0, limits.cpus))
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
        own_task: bool = False,
    ) -> Any:
        """Return what the tool returns.

        Args:
            tool: What to run.
            arguments: What it gets.
            context: What it gets besides, if it takes one.
            state: Is told what becomes known of the run.
            seconds: Its deadline.
            own_task: Whether nobody but us cancels the task that we are in.

        Raises:
            ToolTimeoutError: It was stopped at its deadline.
            ToolNotFoundError: It was taken out of the registry with what it runs.
            Exception: Whatever the tool raises.
        """
        began = time.perf_counter()
        state.outer = current_call.get()
        token = current_call.set(state)
        if tool.cost:
            state.usage |= {
                unit: amount
                for unit, amount in tool.cost.items()
                if unit not in _MEASURED
            }
        scope = self._new_scope()
        run = self._registry.track_run(tool, scope.cancel)
        try:
            with scope:
                try:
                    with run:
                        work = self._work(tool, arguments, context, state, seconds)
                        # In a cell the kernel holds the deadline; to wait for a
                        # cell is not the tool's time.
                        deadline = None if tool.sandboxed else began + seconds
                        return await _until(work, scope, deadline, state)
                except anyio.get_cancelled_exc_class():
                    if context is not None:
                        context.cancel()
                    if is_cancelled(own_task=own_task):
                        raise
                    raise ToolExecutionError(
                        f"{tool.name} cancelled itself",
                        hint="try again, or use another tool",
                    ) from None
                except (SystemExit, KeyboardInterrupt) as error:
                    # It would take every other call of the process along.
                    raise ToolExecutionError(
                        f"{tool.name} failed ({type(error).__name__})",
                        hint="try other arguments or another tool",
                    ) from error
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

    def _new_scope(self) -> anyio.CancelScope:
        if self._scope_class is None:
            # What the public class makes is of the event loop's own class, and made
            # twice. An executor has one loop.
            self._scope_class = type(anyio.CancelScope())
        return self._scope_class()

    def _work(
        self,
        tool: Tool,
        arguments: Arguments,
        context: ToolContext | None,
        state: CallState,
        seconds: float,
    ) -> Work:
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
        state.job = self._workers.job(partial(tool.call, arguments, context))
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
        result, wall = await run_in_cell(self._sandbox, tool, arguments, seconds)
        state.add_cell_usage(result)
        return content_of(tool.name, result, wall)


async def _awaited(work: Any) -> Any:
    return await work


@types.coroutine
def _until(
    work: Work, scope: anyio.CancelScope, deadline: float | None, state: CallState
) -> Generator[Any, Any, Any]:
    """Do the work; when it waits for the first time, set the scope's deadline.

    Most tools never wait: a timer for them is dear, and could not fire.
    """
    try:
        waited = work.send(None)
        if deadline is not None:
            left = deadline + state.gained - time.perf_counter()
            scope.deadline = anyio.current_time() + left
            state.scope = scope
        while True:
            try:
                sent = yield waited
            except BaseException as error:  # noqa: BLE001 - the work has to see it
                waited = work.throw(error)
            else:
                waited = work.send(sent)
    except StopIteration as end:
        return end.value
    finally:
        work.close()


def is_cancelled(*, own_task: bool) -> bool:
    """Tell a cancellation that we were sent from one that a tool made up.

    Args:
        own_task: Whether nobody but us cancels the task that we are in.
    """
    if anyio.current_effective_deadline() == -math.inf:
        return True
    try:
        task = asyncio.current_task()
    except RuntimeError:
        # Trio, where nobody can make one up.
        return True
    return not own_task and (task is None or task.cancelling() > 0)


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
    """Return what a tool returned as JSON values.

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
        content: JsonValue = to_jsonable_python(value, inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise ToolExecutionError(
            f"{name} returned what is not JSON ({type(value).__name__})",
            hint="its function has to return None, bool, int, float, str, list or dict",
        ) from error
    return content
