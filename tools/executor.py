"""Calls tools: one, a batch, or a batch as a stream of results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import TracebackType
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
from toolcell.guard import ActionGuard, Redactor
from toolcell.sandbox import SandboxManager

from .attempt import Parts, RunContext
from .circuit_breaker import CircuitBreaker
from .hooks import Hook
from .idempotency import Idempotency, MemoryIdempotency
from .pipeline import Pipeline
from .records import MemoryRecords, Records
from .registry import ToolRegistry
from .retries import RetryPolicy
from .running import NOTHING_HELD, Held, Runner
from .slots import Slots
from .snapshot import Snapshot
from .workers import Workers

Call = ToolCall | Mapping[str, Any]
"""A call, or its fields as they came from a model; what cannot be read is a failed
call, not an error of the batch."""

Turn = Callable[[], Coroutine[Any, Any, None]]
"""One call of a batch. It hands its result over; it raises when it is cancelled."""

Slot = AbstractAsyncContextManager[Held]


@dataclass(frozen=True, slots=True)
class Ended:
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
            on and is counted in `still_running`.
        max_threads: Plain functions at once, those that run on included. When it is
            reached their calls fail.
        raise_on_error: Raise the error of a failed call, after its batch has ended;
            in a stream when its turn comes.
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
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        if not 0 < timeout_seconds < float("inf") or max_threads < 1:
            raise ConfigError("timeout_seconds must be above 0, max_threads at least 1")
        self.registry = registry
        self.records = MemoryRecords() if records is None else records
        self._workers = Workers(max_threads)
        self._raise_on_error = raise_on_error
        self._parts = Parts(
            guard=guard,
            runner=Runner(registry, self._workers, sandbox),
            records=self.records,
            idempotency=MemoryIdempotency() if idempotency is None else idempotency,
            hooks=tuple(hooks),
            retries=dict(retries or {}),
            circuit_breaker=circuit_breaker,
            redactor=Redactor() if redactor is None else redactor,
            timeout_seconds=timeout_seconds,
            clock=clock,
        )

    @property
    def still_running(self) -> int:
        """How many functions run on in threads although their calls have ended."""
        return self._workers.still_running

    async def call(self, call: Call, *, run: RunContext = _NO_RUN) -> ToolResult:
        """Make one call, in the task and at the cost of the caller.

        Args:
            call: What to call.
            run: What the tool and the guard may know of the agent's run.

        Raises:
            ToolcellError: It failed, if the executor has `raise_on_error`.
        """
        ended = await self._turn(self.registry.snapshot(), call, 0, run)
        if ended.error is not None and self._raise_on_error:
            raise ended.error
        return ended.result

    async def outcome(self, call: ToolCall, *, run: RunContext = _NO_RUN) -> ToolResult:
        """Make one call; a failed one is a result, whatever `raise_on_error` says.

        Args:
            call: What to call.
            run: What the tool and the guard may know of the agent's run.
        """
        return (await self._turn(self.registry.snapshot(), call, 0, run)).result

    def refuse(self, call: ToolCall, error: ToolcellError) -> ToolResult:
        """Return the result of a call that is not made, and keep a record of it.

        Args:
            call: What was asked for.
            error: Why it is not made.
        """
        return self._refused(self.registry.snapshot(), call, 0, error).result

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

        async def take(item: Ended) -> None:
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
    async def _run_all(self, turns: Sequence[Turn], names: Sequence[str]) -> None:
        """Await every turn, each in a task of its own of the name beside it."""

    def _slot(self, snapshot: Snapshot, call: ToolCall) -> Slot:
        """Return what a call holds while it runs; by default nothing."""
        return nullcontext(NOTHING_HELD)

    async def _make(
        self,
        calls: Sequence[Call],
        run: RunContext,
        take: Callable[[Ended], Awaitable[None]],
    ) -> None:
        """Make calls and hand over each end, exactly one for each index."""
        snapshot = self.registry.snapshot()
        missing = set(range(len(calls)))

        async def turn(index: int) -> None:
            ended = await self._turn(snapshot, calls[index], index, run)
            missing.remove(index)
            await take(ended)

        turns = [partial(turn, index) for index in range(len(calls))]
        await self._run_all(turns, [_name(*each) for each in enumerate(calls)])
        for index in sorted(missing):
            # An executor of somebody else left it out.
            error = ToolExecutionError(f"{type(self).__name__} did not make the call")
            await take(self._refused(snapshot, calls[index], index, error))

    async def _turn(
        self, snapshot: Snapshot, given: Call, index: int, run: RunContext
    ) -> Ended:
        try:
            call = given if isinstance(given, ToolCall) else ToolCall(**given)
        except InvalidInputError as error:
            return self._refused(snapshot, given, index, error)
        except TypeError:
            problem = InvalidInputError("a call is an object with `id` and `name`")
            return self._refused(snapshot, given, index, problem)
        pipeline = Pipeline(self._parts, snapshot, call, run)
        result = await pipeline.execute(self._slot(snapshot, call))
        return Ended(index, result, pipeline.error)

    def _refused(
        self, snapshot: Snapshot, given: Call, index: int, error: ToolcellError
    ) -> Ended:
        """End a call that was not made, with a record like any other."""
        call = given if isinstance(given, ToolCall) else _stand_in(given, index)
        pipeline = Pipeline(self._parts, snapshot, call, _NO_RUN)
        return Ended(index, pipeline.refuse(error), error)


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
        self._received: MemoryObjectReceiveStream[Ended] | None = None

    async def __aenter__(self) -> ResultStream:
        if self._tasks is not None:
            raise InvalidInputError("a stream of results is used once")
        send, self._received = anyio.create_memory_object_stream[Ended](
            len(self._calls)
        )
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._produce, send)
        return self

    async def _produce(self, send: MemoryObjectSendStream[Ended]) -> None:
        with send:
            await self._executor._make(self._calls, self._run, send.send)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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

    async def _run_all(self, turns: Sequence[Turn], names: Sequence[str]) -> None:
        for turn, name in zip(turns, names, strict=True):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(turn, name=name)


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
            raise ConfigError("max_concurrency must be at least 1")
        self._slots = Slots(max_concurrency)
        self._group_of = _group_of(groups or {})

    async def _run_all(self, turns: Sequence[Turn], names: Sequence[str]) -> None:
        async with anyio.create_task_group() as tasks:
            for turn, name in zip(turns, names, strict=True):
                tasks.start_soon(turn, name=name)

    def _slot(self, snapshot: Snapshot, call: ToolCall) -> Slot:
        group = None
        if self._group_of:
            tool = snapshot.for_agent(call.agent_id).get(call.name)
            group = None if tool is None else self._group_of.get(tool.name)
        return self._slots.turn(group)


def _group_of(groups: Mapping[str, Collection[str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for group, names in groups.items():
        for name in names:
            if found.setdefault(name, group) != group:
                raise ConfigError(f"{name} is in the groups {found[name]} and {group}")
    return found
