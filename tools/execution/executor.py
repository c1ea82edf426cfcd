"""Calls tools: one, a batch, or a batch as a stream of results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Required, TypedDict, Unpack

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from toolcell.core import (
    ConfigError,
    InvalidInputError,
    ToolCall,
    ToolcellError,
    ToolExecutionError,
    ToolResult,
)
from toolcell.guard import ActionGuard, CallFacts, Redactor
from toolcell.sandbox import SandboxManager

from ..definition.tool import Tool
from ..hooks.hook import Hook
from ..registry.registry import ToolRegistry
from ..registry.snapshot import Snapshot
from ..stores.idempotency import Idempotency, MemoryIdempotency
from ..stores.records import MemoryRecords, Records
from .attempt import ExecutorComponents, RunContext
from .batch import BatchCall, run_batch
from .circuit_breaker import CircuitBreaker
from .pipeline import Pipeline
from .retries import RetryPolicy
from .runner import ToolRunner, current_call
from .slots import Slot, Slots
from .threads import Workers

Call = ToolCall | Mapping[str, Any]
"""A call, or its fields as they came from a model; what cannot be read is a failed
call, not an error of the batch."""


@dataclass(frozen=True, slots=True)
class IndexedResult:
    """How one call of a batch ended."""

    index: int
    result: ToolResult
    error: ToolcellError | None


_NO_RUN = RunContext()


class ExecutorOptions(TypedDict, total=False):
    """What every executor takes; see `ToolExecutor`."""

    guard: Required[ActionGuard | None]
    sandbox: SandboxManager | None
    records: Records | None
    idempotency: Idempotency | None
    hooks: Sequence[Hook]
    retries: Mapping[str, RetryPolicy] | None
    circuit_breaker: CircuitBreaker | None
    redactor: Redactor | None
    timeout_seconds: float
    max_threads: int
    raise_on_error: bool
    tell_remaining: bool
    clock: Callable[[], datetime] | None


class ToolExecutor(ABC):
    """Calls the tools of a registry, each call on the same way.

    Look up, validate, admit by the guard, run, settle, record: nothing gets past
    it, and what goes wrong on it is a result. An executor belongs to one event loop.

    Args:
        registry: The tools. A batch works on the tools as they are when it starts.
        guard: Who may do what. None calls tools without one: write it only where
            every caller may do everything.
        sandbox: Where sandboxed tools run; open, and closed by its owner.
        records: Where records go; default: in memory.
        idempotency: Which calls were made; default: in memory, for an hour.
        hooks: Wrapped around each run; the first one is the outermost.
        retries: By tool name; only tools declared idempotent are tried again.
        circuit_breaker: Stops calls to tools that keep failing; default: none.
        redactor: Hides secrets in records.
        timeout_seconds: For tools that name none. When it is reached the tool is
            stopped and the status is `timeout`; a plain function in a thread runs
            on and is counted in `still_running`. It stands still while a call that
            the tool makes waits for a person.
        max_threads: Plain functions at once, those that run on included. When it is
            reached their calls fail.
        raise_on_error: Raise the error of a failed call, after its batch has ended;
            in a stream when its turn comes.
        tell_remaining: Tell in each result what the guard's limits leave, so that a
            model can plan; it reads them with the result.
        clock: Returns the time with its zone, for records and tools; default: the
            system's.

    Raises:
        ConfigError: A number is out of range.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        *,
        guard: ActionGuard | None,
        sandbox: SandboxManager | None = None,
        records: Records | None = None,
        idempotency: Idempotency | None = None,
        hooks: Sequence[Hook] = (),
        retries: Mapping[str, RetryPolicy] | None = None,
        circuit_breaker: CircuitBreaker | None = None,
        redactor: Redactor | None = None,
        timeout_seconds: float = 30.0,
        max_threads: int = 64,
        raise_on_error: bool = False,
        tell_remaining: bool = False,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        if not 0 < timeout_seconds < float("inf") or max_threads < 1:
            raise ConfigError(
                "timeout_seconds must be above 0, max_threads at least 1",
                hint="leave them out for the defaults",
            )
        self.registry = registry
        self.records = MemoryRecords() if records is None else records
        self._workers = Workers(max_threads)
        self._raise_on_error = raise_on_error
        self._components = ExecutorComponents(
            guard=guard,
            runner=ToolRunner(registry, self._workers, sandbox),
            records=self.records,
            idempotency=MemoryIdempotency() if idempotency is None else idempotency,
            hooks=tuple(hooks),
            retries=dict(retries or {}),
            circuit_breaker=circuit_breaker,
            redactor=Redactor() if redactor is None else redactor,
            timeout_seconds=timeout_seconds,
            tell_remaining=tell_remaining,
            clock=clock,
        )

    @property
    def still_running(self) -> int:
        """How many functions run on in threads although their calls have ended."""
        return self._workers.still_running

    def approval_seconds(self, run: RunContext) -> float:
        """Return how long a call may wait for a person; 0: nobody is asked."""
        return self._components.approval_seconds(run)

    async def call(self, call: Call, *, run: RunContext = _NO_RUN) -> ToolResult:
        """Make one call, in the task and at the cost of the caller.

        Args:
            call: What to call.
            run: What the tool and the guard may know of the agent's run.

        Raises:
            ToolcellError: It failed, if the executor has `raise_on_error`.
        """
        pipeline = self._pipeline(self.registry.snapshot(), call, 0, run)
        result = await pipeline.execute()
        if pipeline.error is not None and self._raise_on_error:
            raise pipeline.error
        return result

    async def outcome(self, call: ToolCall, *, run: RunContext = _NO_RUN) -> ToolResult:
        """Make one call; a failed one is a result, whatever `raise_on_error` says.

        Args:
            call: What to call.
            run: What the tool and the guard may know of the agent's run.
        """
        return await self._pipeline(self.registry.snapshot(), call, 0, run).execute()

    def tools(self, agent_id: str | None) -> list[Tool]:
        """Return the tools to show an agent: without those always denied to it.

        Args:
            agent_id: Who would call; None stands for one without a name.
        """
        seen = self.registry.snapshot().for_agent(agent_id)
        return [tool for tool in seen if self.sees(agent_id, tool)]

    def sees(self, agent_id: str | None, tool: Tool) -> bool:
        """Return whether the guard could allow some call of an agent to a tool.

        Args:
            agent_id: Who would call; None stands for one without a name.
            tool: Of the registry.
        """
        guard = self._components.guard
        if guard is None or agent_id is None:
            return guard is None
        facts = CallFacts(version=tool.version, tags=frozenset(tool.tags))
        return guard.may_allow(agent_id, tool.name, facts)

    def refuse(self, call: ToolCall, error: ToolcellError) -> ToolResult:
        """Return the result of a call that is not made, and keep a record of it.

        Args:
            call: What was asked for.
            error: Why it is not made.
        """
        snapshot = self.registry.snapshot()
        return Pipeline(self._components, snapshot, call, _NO_RUN).refuse(error)

    async def execute(
        self, calls: Sequence[Call], *, run: RunContext = _NO_RUN
    ) -> list[ToolResult]:
        """Make calls and return their results in the order of the calls.

        Args:
            calls: What to call; none is fine.
            run: What the tools and the guard may know of the agent's run.

        Raises:
            ToolcellError: The first that failed, if the executor has
                `raise_on_error`; all calls have ended by then.
        """
        results: list[ToolResult | None] = [None] * len(calls)
        errors: dict[int, ToolcellError] = {}

        def take(item: IndexedResult) -> None:
            results[item.index] = item.result
            if item.error is not None:
                errors[item.index] = item.error

        await self._make(calls, run, take)
        if errors and self._raise_on_error:
            raise errors[min(errors)]
        return [result for result in results if result is not None]

    def execute_streaming(
        self, calls: Sequence[Call], *, run: RunContext = _NO_RUN
    ) -> ResultStream:
        """Make calls and hand out results as they come, each with its index.

        ```
        async with executor.execute_streaming(calls) as results:
            async for index, result in results: ...
        ```
        Each index comes once. Leaving the `async with` early, by `break`, `return` or
        an error, cancels what is in flight, and control is back when that has ended.

        Args:
            calls: What to call; none is fine.
            run: What the tools and the guard may know of the agent's run.
        """
        return ResultStream(self, calls, run)

    @abstractmethod
    async def _run_all(self, turns: Sequence[BatchCall], names: Sequence[str]) -> None:
        """Await every turn, in tasks of the executor's own and of the names beside."""

    def _slot(self, snapshot: Snapshot, call: ToolCall) -> Slot | None:
        """Return what a call holds while it runs; by default nothing."""
        return None

    async def _make(
        self,
        calls: Sequence[Call],
        run: RunContext,
        take: Callable[[IndexedResult], None],
    ) -> None:
        """Make calls and hand over each end, exactly one for each index."""
        snapshot = self.registry.snapshot()
        waiting, missing = set(range(len(calls))), set(range(len(calls)))

        async def turn(index: int) -> bool:
            waiting.remove(index)
            made = self._pipeline(snapshot, calls[index], index, run, own_task=True)
            result = await made.execute()
            missing.remove(index)
            take(IndexedResult(index, result, made.error))
            return result.ok

        turns = [partial(turn, index) for index in range(len(calls))]
        try:
            await self._run_all(turns, [_name(*each) for each in enumerate(calls)])
        except BaseException:
            for index in sorted(waiting):
                self._pipeline(snapshot, calls[index], index, run).stop()
            raise
        for index in sorted(missing):
            # An executor of somebody else left it out.
            error = ToolExecutionError(
                f"{type(self).__name__} did not make the call",
                hint="make the call again; the executor has to run each turn once",
            )
            made = self._pipeline(snapshot, calls[index], index, run)
            take(IndexedResult(index, made.refuse(error), error))

    def _pipeline(
        self,
        snapshot: Snapshot,
        given: Call,
        index: int,
        run: RunContext,
        *,
        own_task: bool = False,
    ) -> Pipeline:
        """Return the way of a call; one that cannot be read ends on it like others."""
        problem = None
        try:
            call = given if isinstance(given, ToolCall) else ToolCall(**given)
        except InvalidInputError as error:
            problem = error
        except TypeError:
            problem = InvalidInputError(
                "a call is an object with `id` and `name`",
                hint='write it like {"id": "1", "name": "add", "arguments": {}}',
            )
        if problem is not None:
            stand_in = _stand_in(given, index)
            return Pipeline(
                self._components, snapshot, stand_in, _NO_RUN, problem=problem
            )
        slot = self._slot(snapshot, call)
        return Pipeline(
            self._components, snapshot, call, run, slot=slot, own_task=own_task
        )


def _name(index: int, call: Call) -> str:
    if isinstance(call, ToolCall):
        return f"{call.name} {index} {call.id}"
    return f"call {index}"


def _stand_in(given: Any, index: int) -> ToolCall:
    """Return a call that can be named in a result, for one that cannot be read."""
    fields = given if isinstance(given, Mapping) else {}
    return ToolCall(
        id=_label(fields.get("id")) or f"unreadable-{index}",
        name=_label(fields.get("name")) or "unreadable",
    )


def _label(value: Any) -> str | None:
    usable = isinstance(value, str) and len(value) <= 256 and value.isprintable()
    return value if usable else None


class ResultStream:
    """The results of a batch in the order in which its calls end.

    Use it in `async with`, and iterate it there: only so is everything over when
    control is back. What Python does at a `break` in a bare `async for` comes later.
    """

    def __init__(
        self, executor: ToolExecutor, calls: Sequence[Call], run: RunContext
    ) -> None:
        self._executor = executor
        self._calls = calls
        self._run = run
        self._tasks: TaskGroup | None = None
        self._received: MemoryObjectReceiveStream[IndexedResult] | None = None

    async def __aenter__(self) -> ResultStream:
        if self._tasks is not None:
            raise InvalidInputError(
                "a stream of results is used once", hint="call execute_streaming again"
            )
        send, self._received = anyio.create_memory_object_stream[IndexedResult](
            len(self._calls)
        )
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._produce, send)
        return self

    async def _produce(self, send: MemoryObjectSendStream[IndexedResult]) -> None:
        def hand_over(ended: IndexedResult) -> None:
            # Whoever left the stream takes no more.
            with suppress(anyio.BrokenResourceError):
                send.send_nowait(ended)

        with send:
            await self._executor._make(self._calls, self._run, hand_over)

    async def __aexit__(self, *_: object) -> None:
        if self._tasks is None or self._received is None:
            return
        self._tasks.cancel_scope.cancel()
        self._received.close()
        # The caller's error is not the group's: it goes on as it is.
        await self._tasks.__aexit__(None, None, None)

    def __aiter__(self) -> AsyncIterator[tuple[int, ToolResult]]:
        if self._received is None:
            raise InvalidInputError(
                "a stream of results is read inside `async with`",
                hint="async with executor.execute_streaming(calls) as results: ...",
            )
        return self

    async def __anext__(self) -> tuple[int, ToolResult]:
        if self._received is None:
            raise StopAsyncIteration
        try:
            ended = await self._received.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None
        if ended.error is not None and self._executor._raise_on_error:
            raise ended.error
        return ended.index, ended.result


class SequentialExecutor(ToolExecutor):
    """Makes the calls of a batch one after the other, in their order."""

    async def _run_all(self, turns: Sequence[BatchCall], names: Sequence[str]) -> None:
        await run_batch(turns, names, 1)


class ConcurrentExecutor(ToolExecutor):
    """Makes calls at the same time.

    Args:
        registry: The tools.
        max_concurrency: Calls at once, over all batches. When it is reached others
            wait their turn.
        groups: Names of tools by name of a group. Of a group one call runs at a
            time, for tools that share what cannot be shared.
        **options: As of `ToolExecutor`.

    Raises:
        ConfigError: A number is out of range, or a tool is in two groups.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        *,
        max_concurrency: int = 10,
        groups: Mapping[str, Collection[str]] | None = None,
        **options: Unpack[ExecutorOptions],
    ) -> None:
        super().__init__(registry, **options)
        if max_concurrency < 1:
            raise ConfigError(
                "max_concurrency must be at least 1",
                hint="give a whole number from 1 on",
            )
        self._limit = max_concurrency
        self._slots = Slots(max_concurrency)
        self._group_of = _group_of(groups or {})

    async def _run_all(self, turns: Sequence[BatchCall], names: Sequence[str]) -> None:
        # Calls of groups, and calls inside a call, do not only wait for slots.
        bounded = not self._group_of and current_call.get() is None
        await run_batch(turns, names, self._limit if bounded else len(turns))

    def _slot(self, snapshot: Snapshot, call: ToolCall) -> Slot:
        group = None
        if self._group_of:
            tool = snapshot.for_agent(call.agent_id).get(call.name)
            group = None if tool is None else self._group_of.get(tool.name)
        return Slot(self._slots, group)


def _group_of(groups: Mapping[str, Collection[str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for group, names in groups.items():
        for name in names:
            if found.setdefault(name, group) != group:
                raise ConfigError(
                    f"{name} is in the groups {found[name]} and {group}",
                    hint="put it into one group",
                )
    return found
