"""What a node did through its context is not done again."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from toolcell.core import InvalidInputError, ToolCall
from toolcell.flow import (
    END,
    START,
    Flow,
    FlowLimits,
    Interrupted,
    MemoryCheckpointer,
    NodeContext,
    interrupt,
)
from toolcell.tools import RetryPolicy, tool

from ...support.flow.graphs import Log, chain, flow, said
from ...support.sample_tools import executor

pytestmark = pytest.mark.anyio
SOON = RetryPolicy(max_attempts=3, first_seconds=0)
OFTEN = RetryPolicy(max_attempts=100, first_seconds=0)


class Counter:
    """A tool that counts, and fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.made: list[Any] = []
        self.failures = failures
        self.tool = tool(name="count")(self.count)

    async def count(self, n: int) -> int:
        self.made.append(n)
        if len(self.made) <= self.failures:
            raise ValueError("hunter2")
        return n * 10


@pytest.mark.promise("flow-34")
async def test_nothing_is_done_twice_after_a_question() -> None:
    """Calls, values, chance and time are the same when the node runs again."""
    counter = Counter()
    values = itertools.count()
    seen: list[Any] = []
    recorded: list[bool] = []

    async def node(state: Log, ctx: NodeContext) -> dict[str, Any]:
        known: list[Any] = [ctx.replaying]
        for n in range(2):
            known.append((await ctx.call("count", n=n)).content)
        batch = [ToolCall(id=f"c{n}", name="count", arguments={"n": n}) for n in (5, 6)]
        recorded.append(ctx.replaying)
        results = await ctx.calls(batch)
        known += [(result.call_id, result.content) for result in results]
        known += [await ctx.once(next, values), ctx.random.random(), ctx.started_at]
        seen.append(known)
        return said(interrupt("a?"))

    calls = flow(node, executor=executor(counter.tool))
    paused = await calls.run({}, "t")
    done = await calls.resume("t", {paused.interrupts[0].interrupt_id: "A"})

    assert done.unwrap().log == ("A",)
    assert sorted(counter.made) == [0, 1, 5, 6]
    assert seen[0][1:] == seen[1][1:]
    assert (seen[0][0], seen[1][0]) == (False, True)
    assert recorded == [False, True]
    assert seen[0][3:5] == [("c5", 50), ("c6", 60)]
    assert next(values) == 1


async def test_async_values_are_awaited_and_kept() -> None:
    async def now() -> datetime:
        return datetime(2026, 1, 2, tzinfo=UTC)

    async def node(state: Log, ctx: NodeContext) -> dict[str, Any]:
        return said(str(await ctx.once(now)))

    assert (await flow(node).run({})).unwrap().log == ("2026-01-02T00:00:00Z",)


async def test_a_value_without_a_json_form_is_refused() -> None:
    async def node(state: Log, ctx: NodeContext) -> None:
        await ctx.once(object)

    result = await flow(node).run({})

    assert result.error is not None
    assert "no JSON form" in result.error.message


@pytest.mark.promise("flow-35")
async def test_another_operation_in_the_same_place_is_an_error_not_a_guess() -> None:
    counter = Counter()
    asked = "a?"
    number = 1

    async def node(state: Log, ctx: NodeContext) -> dict[str, Any]:
        await ctx.call("count", n=number)
        return said(interrupt(asked))

    calls = flow(node, executor=executor(counter.tool))
    paused = await calls.run({}, "t")
    number = 2
    await calls.answer("t", paused.interrupts[0].interrupt_id, "A", by="anna")
    result = await calls.resume("t")

    assert result.error is not None
    assert result.error.kind == "flow.replay"
    assert "did call 'count' at 0, and now does call 'count' with other values" in (
        result.error.message
    )
    assert counter.made == [1]
    number, asked = 1, "b?"
    result = await calls.resume("t")
    assert result.error is not None
    assert result.error.kind == "flow.replay"
    asked = "a?"
    assert (await calls.resume("t")).unwrap().log == ("A",)
    assert counter.made == [1]


@pytest.mark.promise("flow-35")
async def test_a_survived_failure_stays_when_other_code_went_another_way() -> None:
    counter = Counter(failures=1)
    asked = "a?"

    async def node(state: Log, ctx: NodeContext) -> dict[str, Any]:
        survived = await ctx.call("count", n=1)
        return said(survived.status, interrupt(asked))

    calls = flow(node, executor=executor(counter.tool))
    paused = await calls.run({}, "t")
    await calls.answer("t", paused.interrupts[0].interrupt_id, "A", by="anna")
    asked = "b?"
    assert (await calls.resume("t")).status == "failed"
    asked = "a?"

    assert (await calls.resume("t")).unwrap().log == ("error", "A")
    assert counter.made == [1]


@pytest.mark.promise("flow-36")
async def test_operations_in_a_task_group_are_known_by_key() -> None:
    """In any order: each run has another schedule, and trio shuffles its tasks."""
    counter, schedule = Counter(), random.Random(0)

    async def node(state: Log, ctx: NodeContext) -> dict[str, Any]:
        async def one(n: int) -> None:
            for _ in range(schedule.randrange(5)):
                await anyio.lowlevel.checkpoint()
            result = await ctx.call("count", n=n, key=f"n{n}")
            found[n] = result.content

        found: dict[int, Any] = {}
        async with anyio.create_task_group() as group:
            for n in range(5):
                group.start_soon(one, n)
        interrupt("a?")
        return {"items": [found[n] for n in range(5)]}

    calls = flow(node, executor=executor(counter.tool))
    for seed in range(50):
        paused = await calls.run({}, f"t{seed}")
        question = paused.interrupts[0].interrupt_id
        done = await calls.resume(f"t{seed}", {question: 1})
        assert done.unwrap().items == [0, 10, 20, 30, 40]
    assert sorted(counter.made) == sorted(list(range(5)) * 50)


@pytest.mark.parametrize("key", ["", "x" * 65, "a\n", "twice"])
async def test_a_key_is_short_and_used_once(key: str) -> None:
    async def node(state: Log, ctx: NodeContext) -> None:
        await ctx.once(int, key=key)
        await ctx.once(int, key=key)

    result = await flow(node).run({})

    assert result.error is not None
    assert "cannot be the key" in result.error.message


async def test_names_that_are_taken_come_in_a_dict() -> None:
    @tool
    async def keep(key: str, tool: str) -> str:
        return key + tool

    async def node(state: Log, ctx: NodeContext) -> dict[str, Any]:
        result = await ctx.call("keep", {"key": "a", "tool": "b"})
        return said(str(result.content), result.call_id)

    done = await flow(node, executor=executor(keep)).run({}, "t")
    assert done.unwrap().log == ("ab", "t/1.0/0")


async def test_a_flow_without_an_executor_calls_nothing() -> None:
    async def node(state: Log, ctx: NodeContext) -> None:
        await ctx.call("count", n=1)

    result = await flow(node).run({})

    assert result.error is not None
    assert "cannot call tools" in result.error.message


async def test_a_failed_call_is_a_result() -> None:
    counter = Counter(failures=1)

    async def node(state: Log, ctx: NodeContext) -> dict[str, Any]:
        first = await ctx.call("count", n=1)
        second = await ctx.call("count", n=2)
        return said(first.status, second.status)

    done = await flow(node, executor=executor(counter.tool)).run({})
    assert done.unwrap().log == ("error", "ok")


@pytest.mark.promise("flow-37")
async def test_a_retry_repeats_the_failures_at_the_end_alone() -> None:
    """What succeeded is replayed; a failure that the node survived stays."""
    counter = Counter(failures=1)
    attempts: list[int] = []

    async def node(state: Log, ctx: NodeContext) -> dict[str, Any]:
        attempts.append(ctx.attempt)
        survived = await ctx.call("count", n=1)
        kept = await ctx.call("count", n=2)
        if len(counter.made) == 2:
            counter.failures = 3
        last = await ctx.call("count", n=3)
        if not last.ok:
            raise ValueError
        return said(survived.status, kept.status, last.status, last.call_id)

    graph = chain(_passes)
    graph.node(retry=SOON)(node)
    graph.edge("_passes", "node").edge("node", END)
    done = await Flow(graph, executor=executor(counter.tool)).run({}, "t")

    assert done.unwrap().log == ("error", "ok", "ok", "t/2.0/2~2")
    assert counter.made == [1, 2, 3, 3]
    assert attempts == [1, 2]


def _passes(state: Log) -> None: ...


async def test_a_failed_thread_is_resumed_where_it_failed() -> None:
    counter = Counter()
    broken = True

    async def node(state: Log, ctx: NodeContext) -> dict[str, Any]:
        await ctx.call("count", n=1)
        if broken:
            raise ValueError("hunter2")
        return said("done")

    calls = flow(node, executor=executor(counter.tool))
    failed = await calls.run({}, "t")
    assert failed.status == "failed"
    with pytest.raises(InvalidInputError, match="the thread is failed"):
        await calls.run({}, "t")
    broken = False

    assert (await calls.resume("t")).unwrap().log == ("done",)
    assert counter.made == [1]


@pytest.mark.promise("flow-38")
async def test_a_timeout_fails_the_attempt_and_the_call_is_seen_through() -> None:
    gate = anyio.Event()
    made: list[int] = []

    @tool
    async def slow() -> str:
        made.append(1)
        await gate.wait()
        return "slow"

    async def node(state: Log, ctx: NodeContext) -> dict[str, Any]:
        if ctx.attempt > 1:
            gate.set()
        return said(str((await ctx.call("slow")).content))

    graph = chain(_passes)
    graph.node(timeout=0.05, retry=OFTEN)(node)
    graph.edge("_passes", "node")
    with anyio.fail_after(60):
        done = await Flow(graph, executor=executor(slow)).run({})

    assert done.unwrap().log == ("slow",)
    assert made == [1]


@pytest.mark.promise("flow-38")
async def test_a_call_that_runs_when_its_node_asks_ends_and_is_recorded() -> None:
    """So does one whose sibling asks: neither is in doubt, or made again."""
    counter, asked = Counter(), anyio.Event()

    @tool(name="count")
    async def slow(n: int) -> int:
        await asked.wait()
        return await counter.count(n)

    async def node(state: Log, ctx: NodeContext) -> dict[str, Any]:
        async def ask() -> None:
            answer.append(interrupt("a?", key="ask"))

        async def call() -> None:
            results.append(await ctx.call("count", n=1, key="call"))

        answer: list[Any] = []
        results: list[Any] = []
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            group.start_soon(ask)
        return said(answer[0], str(results[0].content))

    async def sibling(state: Log, ctx: NodeContext) -> dict[str, Any]:
        result = await ctx.call("count", n=2)
        return said(str(result.content))

    graph = chain(node)
    graph.node(sibling)
    graph.edge(START, "sibling")
    calls = Flow(graph, executor=executor(slow))
    paused = None
    async with calls.stream({}, "t") as events:
        async for event in events:
            if isinstance(event, Interrupted):
                assert counter.made == []
                asked.set()
        paused = events.result
    assert sorted(counter.made) == [1, 2]
    [question] = paused.interrupts
    done = await calls.resume("t", {question.interrupt_id: "A"})

    assert done.unwrap().log == ("A", "10", "20")
    assert sorted(counter.made) == [1, 2]


@pytest.mark.promise("flow-38")
@pytest.mark.parametrize(
    ("answer", "made", "log"),
    [
        ({"outcome": "done", "content": 7}, [1], ("ok", "7")),
        ({"outcome": "failed", "message": "lost"}, [1], ("error", "None")),
        ({"outcome": "again"}, [1, 1], ("ok", "10")),
    ],
)
async def test_a_call_that_was_cut_off_is_asked_about(
    answer: Any, made: list[int], log: tuple[str, ...]
) -> None:
    """Nobody knows whether it took effect: it is not made again on a guess."""
    begun = anyio.Event()
    gate = anyio.Event()
    counter = Counter()

    @tool(name="count")
    async def cut(n: int) -> int:
        await counter.count(n)
        begun.set()
        await gate.wait()
        return n * 10

    async def node(state: Log, ctx: NodeContext) -> dict[str, Any]:
        result = await ctx.call("count", n=1)
        return said(result.status, str(result.content))

    store = MemoryCheckpointer()
    calls = flow(node, executor=executor(cut), checkpointer=store)
    async with anyio.create_task_group() as group:
        group.start_soon(calls.run, {}, "t")
        await begun.wait()
        group.cancel_scope.cancel()
    gate.set()
    calls = flow(node, executor=executor(cut), checkpointer=store)
    paused = await calls.resume("t")
    [doubt] = paused.interrupts

    assert (doubt.kind, counter.made) == ("doubt", [1])
    assert isinstance(doubt.payload, dict)
    assert (doubt.payload["tool"], doubt.payload["arguments"]) == ("count", {"n": 1})
    with pytest.raises(InvalidInputError):
        await calls.resume("t", {doubt.interrupt_id: "yes"})
    done = await calls.resume("t", {doubt.interrupt_id: answer})
    assert done.unwrap().log == log
    assert counter.made == made


async def test_a_call_that_waits_for_its_turn_is_in_no_doubt() -> None:
    """It was cut off in the queue of the executor: it is made without a question."""
    begun, counter = anyio.Event(), Counter()

    @tool(name="count")
    async def cut(n: int) -> int:
        await counter.count(n)
        if not begun.is_set():
            begun.set()
            await anyio.sleep_forever()
        return n

    async def node(state: Log, ctx: NodeContext) -> dict[str, Any]:
        asked = [{"name": "count", "arguments": {"n": n}} for n in range(3)]
        return said(*(call.status for call in await ctx.calls(asked)))

    calls = flow(node, executor=executor(cut, max_concurrency=1))
    async with anyio.create_task_group() as group:
        group.start_soon(calls.run, {}, "t")
        await begun.wait()
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    [doubt] = (await calls.resume("t")).interrupts

    assert (doubt.kind, sorted(counter.made)) == ("doubt", [0, 1, 2])
    told = {"outcome": "done", "content": 0}
    done = await calls.resume("t", {doubt.interrupt_id: told})
    assert done.unwrap().log == ("ok", "ok", "ok")
    assert sorted(counter.made) == [0, 1, 2]


async def test_a_doubt_may_be_told_to_the_node() -> None:
    begun, counter = anyio.Event(), Counter()

    @tool(name="count")
    async def cut(n: int) -> int:
        begun.set()
        await counter.count(n)
        await anyio.sleep_forever()
        return n

    async def node(state: Log, ctx: NodeContext) -> dict[str, Any]:
        result = await ctx.call("count", n=1)
        assert result.error is not None
        return said(result.status, str(result.error.details["outcome"]))

    calls = flow(node, executor=executor(cut), in_doubt="tell")
    async with anyio.create_task_group() as group:
        group.start_soon(calls.run, {}, "t")
        await begun.wait()
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()

    assert (await calls.resume("t")).unwrap().log == ("error", "unknown")
    assert counter.made == [1]


async def test_a_harmless_call_that_was_cut_off_is_made_again() -> None:
    begun = anyio.Event()
    gate = anyio.Event()

    @tool(idempotent=True)
    async def read() -> str:
        begun.set()
        await gate.wait()
        return "text"

    async def node(state: Log, ctx: NodeContext) -> dict[str, Any]:
        return said(str((await ctx.call("read")).content))

    calls = flow(node, executor=executor(read))
    async with anyio.create_task_group() as group:
        group.start_soon(calls.run, {}, "t")
        await begun.wait()
        group.cancel_scope.cancel()
    gate.set()

    assert (await calls.resume("t")).unwrap().log == ("text",)


@pytest.mark.promise("flow-20")
async def test_a_large_result_is_cut_and_its_status_stays() -> None:
    @tool
    async def large() -> str:
        return "x" * 20_000

    async def node(state: Log, ctx: NodeContext) -> dict[str, Any]:
        result = await ctx.call("large")
        assert isinstance(result.content, dict)
        return said(result.status, str(result.content["bytes"]))

    limits = FlowLimits(record_bytes=10_000)
    done = await flow(node, executor=executor(large), limits=limits).run({})
    assert done.unwrap().log == ("ok", "20002")
