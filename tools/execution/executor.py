"""Executors make calls of tools: one, a batch, or a batch as a stream of results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from datetime import datetime
from functools import partial
from typing import Any, Unpack

from anyio.lowlevel import cancel_shielded_checkpoint

from toolcell.core import (
    ConfigError,
    ToolCall,
    ToolcellError,
    ToolResult,
)
from toolcell.guard import ActionGuard, Redactor
from toolcell.guard.spi import Via
from toolcell.sandbox import Sandbox

from ..definition.tool import Tool
from ..hooks.hook import Hook
from ..hooks.watcher import CallWatcher
from ..registry.registry import ToolRegistry
from ..registry.snapshot import Snapshot
from ..stores.idempotency import Idempotency
from ..stores.memory_idempotency import MemoryIdempotency
from ..stores.records import HeldRecords, MemoryRecords, Records
from .attempt import current_call
from .batch import BatchCall, run_batch
from .call_errors import not_made, read_call
from .components import (
    ExecutorComponents,
    ExecutorOptions,
    RunContext,
    check_executor,
    first_facts,
)
from .failure_policies import CircuitBreaker, RetryPolicy
from .operation import Operations, RequestGuard
from .pipeline import Pipeline
from .result_stream import HandOver, ResultStream
from .runner import ToolRunner
from .slots import Slot, Slots, group_of_each
from .stepping import CALLERS_TASK, OWN_TASK, TaskCancels, run_in_callers_task
from .threads import Workers

Call = ToolCall | Mapping[str, Any]
"""A call, or its fields as they came from a model. Fields that make no call are a
failed call, not an error of the batch."""

_NO_RUN = RunContext()


class ToolExecutor(ABC):
    """Calls the tools of a registry.

    Each call goes through the same stages: the tool is looked up, the arguments are
    validated, the guard admits the call, the tool runs, its cost is settled, a record
    is written. No call gets past a stage, and a failure at any of them is a result. The
    subclasses decide how many calls of a batch run at once. An executor belongs to one
    event loop.

    Args:
        registry: The tools. A batch works on the tools as they are when it starts.
        guard: Decides which agent may do what. None calls tools without one: write it
            only where every caller may do everything.
        sandbox: The cells for sandboxed tools; open, and closed by its owner.
        records: The store of records; default: in memory.
        idempotency: The store of calls that were made; default: in memory, for an hour.
        hooks: Wrapped around each run; the first one is the outermost.
        watcher: Wrapped around each call, with its waits and refusals; default none.
        retries: By tool name; only tools declared idempotent are tried again.
        circuit_breaker: Stops calls to tools that keep failing; default: none.
        redactor: Hides secrets in records.
        timeout_seconds: For tools that name none; default 30. When it is reached the
            tool is stopped and the status is `timeout`; a plain function in a thread
            runs on and is counted in `still_running`. The clock stands still while a
            call that the tool makes waits for a person.
        max_threads: Plain functions at once, those that run on included; default 64.
            When it is reached their calls fail. Once a second agent has called, an
            agent has half of them.
        raise_on_error: Whether the error of a failed call is raised, after its batch
            has ended; in a stream, in its turn.
        tell_remaining: Whether each result says what the guard's limits leave, so that
            a model can plan with it.
        clock: Returns the time with its zone, for records and tools; default: the
            system's.

    Raises:
        ConfigError: A number is out of range, or `registry` or `guard` of another type.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        *,
        guard: ActionGuard | None,
        sandbox: Sandbox | None = None,
        records: Records | None = None,
        idempotency: Idempotency | None = None,
        hooks: Sequence[Hook] = (),
        watcher: CallWatcher | None = None,
        retries: Mapping[str, RetryPolicy] | None = None,
        circuit_breaker: CircuitBreaker | None = None,
        redactor: Redactor | None = None,
        timeout_seconds: float = 30.0,
        max_threads: int = 64,
        raise_on_error: bool = False,
        tell_remaining: bool = False,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        check_executor(registry, guard, timeout_seconds, max_threads)
        self.registry, self.guard = registry, guard
        self.records = MemoryRecords() if records is None else records
        self._workers = Workers(max_threads)
        self._raise_on_error = raise_on_error
        # A subclass from elsewhere may have other ways with a batch of one.
        ours = SequentialExecutor._run_all, ConcurrentExecutor._run_all
        self._lone_call_is_ours = type(self)._run_all in ours
        self._components = ExecutorComponents(
            guard=guard,
            runner=ToolRunner(registry, self._workers, sandbox),
            records=HeldRecords(self.records),
            idempotency=MemoryIdempotency() if idempotency is None else idempotency,
            hooks=tuple(hooks),
            watcher=watcher,
            retries=dict(retries or {}),
            circuit_breaker=circuit_breaker,
            redactor=Redactor() if redactor is None else redactor,
            timeout_seconds=timeout_seconds,
            tell_remaining=tell_remaining,
            clock=clock,
        )
        self.operation = Operations(self._components)
        """Admits acts that are no calls of tools, with the stages of a call."""

    @property
    def still_running(self) -> int:
        """The number of functions that run on in threads after their calls ended."""
        return self._workers.still_running

    def approval_seconds(self, run: RunContext) -> float:
        """Return the seconds a call may wait for a person; 0: no one is asked."""
        return self._components.approval_seconds(run)

    def request_gate(
        self,
        *,
        agent_id: str | None,
        parent_id: str | None = None,
        run: RunContext = _NO_RUN,
    ) -> RequestGuard:
        """Return what judges the requests of a program: `Sandbox.run(gate=...)`.

        Args:
            agent_id: The agent whose program it is.
            parent_id: The call that starts it.
            run: The agent's run.
        """
        return RequestGuard(self._components, agent_id, parent_id, run)

    def check_records(self) -> None:
        """Check that records can be stored. Raises StoreUnavailableError."""
        self._components.records.check()

    async def call(
        self,
        call: Call,
        *,
        run: RunContext = _NO_RUN,
        raise_on_error: bool | None = None,
    ) -> ToolResult:
        """Make one call, in the task and at the cost of the caller.

        Args:
            call: The call.
            run: The agent's run, as the tool and the guard may know it.
            raise_on_error: Whether a failed call raises its error. None: as the
                executor does.

        Raises:
            ToolcellError: It failed, and errors are to be raised.
        """
        pipeline = self._pipeline(self.registry.snapshot(), call, 0, run)
        result = await pipeline.execute()
        if not result.ok:
            # Refusals may never have waited: a caller that repeats them stops no other.
            await cancel_shielded_checkpoint()
        if raise_on_error is None:
            raise_on_error = self._raise_on_error
        if pipeline.error is not None and raise_on_error:
            raise pipeline.error
        return result

    def tools(self, agent_id: str | None) -> list[Tool]:
        """Return the tools to show a model: without those always denied to its agent.

        Args:
            agent_id: The agent that would call; None stands for one without a name.
        """
        seen = self.registry.snapshot().for_agent(agent_id)
        return [tool for tool in seen if self.may_call(agent_id, tool)]

    def may_call(self, agent_id: str | None, tool: Tool, *, via: Via = "model") -> bool:
        """Return True if the guard could allow some call of an agent to a tool.

        Args:
            agent_id: The agent that would call; None stands for one without a name.
            tool: A tool of the registry.
            via: The way by which the call would come.
        """
        guard = self._components.guard
        if guard is None or agent_id is None:
            return guard is None and via in tool.callers
        return guard.may_allow(agent_id, tool.name, first_facts(tool, via))

    def refuse(self, call: ToolCall, error: ToolcellError) -> ToolResult:
        """Return the result of a call that is not made, and write its record.

        Args:
            call: The call.
            error: The reason why it is not made.
        """
        snapshot = self.registry.snapshot()
        return Pipeline(self._components, snapshot, call, _NO_RUN).refuse(error)

    async def execute(
        self, calls: Sequence[Call], *, run: RunContext = _NO_RUN
    ) -> list[ToolResult]:
        """Make calls and return their results in the order of the calls.

        Args:
            calls: The calls; none is fine.
            run: The agent's run, as the tools and the guard may know it.

        Raises:
            ToolcellError: The first that failed, if the executor has
                `raise_on_error`; all calls have ended by then.
        """
        if len(calls) == 1 and self._lone_call_is_ours:
            return [await self._execute_one(calls[0], run)]
        results: list[Any] = [None] * len(calls)
        errors: dict[int, ToolcellError] = {}

        def collect(
            index: int, result: ToolResult, error: ToolcellError | None
        ) -> None:
            results[index] = result
            if error is not None:
                errors[index] = error

        await self._make_calls(calls, run, collect)
        if errors and self._raise_on_error:
            raise errors[min(errors)]
        return results

    async def _execute_one(self, call: Call, run: RunContext) -> ToolResult:
        """Make a batch of one, as most are: as `execute` does, a sixth quicker."""
        made: list[Pipeline] = []

        def begin(cancels: TaskCancels) -> Coroutine[Any, Any, ToolResult]:
            pipeline = self._pipeline(self.registry.snapshot(), call, 0, run, cancels)
            made.append(pipeline)
            return pipeline.execute()

        result: ToolResult = await run_in_callers_task(begin)
        error = made[0].error
        if error is not None:
            await cancel_shielded_checkpoint()
            if self._raise_on_error:
                raise error
        return result

    def execute_streaming(
        self, calls: Sequence[Call], *, run: RunContext = _NO_RUN
    ) -> ResultStream:
        """Make calls and return results as calls end, each with its index.

        ```
        async with executor.execute_streaming(calls) as results:
            async for index, result in results: ...
        ```
        Each index comes once. Leaving the `async with` early, by `break`, `return` or
        an error, cancels what is in flight, and control is back when that has ended.

        Args:
            calls: The calls; none is fine.
            run: The agent's run, as the tools and the guard may know it.
        """
        produce = partial(self._make_calls, calls, run)
        return ResultStream(produce, len(calls), raise_on_error=self._raise_on_error)

    @abstractmethod
    def _run_all(
        self, calls: Sequence[BatchCall], names: Iterable[str]
    ) -> Awaitable[object]:
        """Await every call, in tasks of the executor's own and of the names beside."""

    def _slot(self, snapshot: Snapshot, call: ToolCall) -> Slot | None:
        """Return the slot that a call holds while it runs; None: it needs none."""
        return None

    async def _make_calls(
        self,
        calls: Sequence[Call],
        run: RunContext,
        hand_over: HandOver,
    ) -> None:
        """Make calls and hand over their results, exactly one for each index."""
        snapshot = self.registry.snapshot()
        begun: set[int] = set()
        ended: set[int] = set()

        async def make(index: int, cancels: TaskCancels = OWN_TASK, /) -> bool:
            begun.add(index)
            pipeline = self._pipeline(snapshot, calls[index], index, run, cancels)
            result = await pipeline.execute()
            ended.add(index)
            hand_over(index, result, pipeline.error)
            return result.ok

        made = [partial(make, index) for index in range(len(calls))]
        try:
            await self._run_all(made, map(_name, range(len(calls)), calls))
        except BaseException:
            for index, call in enumerate(calls):
                if index not in begun:
                    self._pipeline(snapshot, call, index, run).stop()
            raise
        if len(ended) == len(calls):
            return
        for index in sorted(set(range(len(calls))) - ended):
            # A subclass from elsewhere left it out.
            error = not_made(self)
            pipeline = self._pipeline(snapshot, calls[index], index, run)
            hand_over(index, pipeline.refuse(error), error)

    def _pipeline(
        self,
        snapshot: Snapshot,
        given: Call,
        index: int,
        run: RunContext,
        cancels: TaskCancels = CALLERS_TASK,
    ) -> Pipeline:
        """Return the pipeline of a call; one that cannot be read fails in it."""
        call, problem = read_call(given, index)
        components = self._components
        if problem is not None:
            return Pipeline(components, snapshot, call, _NO_RUN, problem=problem)
        slot = self._slot(snapshot, call)
        return Pipeline(components, snapshot, call, run, slot=slot, cancels=cancels)


def _name(index: int, call: Call) -> str:
    if isinstance(call, ToolCall):
        return f"{call.name} {index} {call.id}"
    return f"call {index}"


class SequentialExecutor(ToolExecutor):
    """Makes the calls of a batch one after the other, in their order."""

    def _run_all(
        self, calls: Sequence[BatchCall], names: Iterable[str]
    ) -> Awaitable[object]:
        return run_batch(calls, names, 1)


class ConcurrentExecutor(ToolExecutor):
    """Makes calls at the same time.

    Args:
        registry: The tools.
        max_concurrency: Calls at once, over all batches; default 10. When it is reached
            others wait their turn; agents take turns, and once a second one has called
            the last slot is for agents that have no other.
        max_wait_seconds: Seconds for which a call waits for its turn; default 300. When
            it is reached the call fails, and nothing was done.
        groups: Names of tools by name of a group. One call of a group runs at a time,
            for tools that cannot run beside each other.
        **options: As of `ToolExecutor`.

    Raises:
        ConfigError: A number is out of range, or a tool is in two groups.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        *,
        max_concurrency: int = 10,
        max_wait_seconds: float = 300.0,
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
        self._slots = Slots(max_concurrency, max_wait_seconds)
        self._group_of = group_of_each(groups or {})

    def _run_all(
        self, calls: Sequence[BatchCall], names: Iterable[str]
    ) -> Awaitable[object]:
        # Calls of groups, and calls inside a call, do not only wait for slots.
        bounded = not self._group_of and current_call.get() is None
        return run_batch(calls, names, self._limit if bounded else len(calls))

    def _slot(self, snapshot: Snapshot, call: ToolCall) -> Slot:
        group = None
        if self._group_of:
            tool = snapshot.for_agent(call.agent_id).get(call.name)
            group = None if tool is None else self._group_of.get(tool.name)
        return Slot(self._slots, call.agent_id or "", group)
