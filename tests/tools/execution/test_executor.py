"""Executors: order, streaming, cancellation, groups, contextvars."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from toolcell.core import ConfigError, InvalidInputError, ToolCall
from toolcell.tools import (
    ConcurrentExecutor,
    RunContext,
    SequentialExecutor,
    Tool,
    ToolContext,
    ToolExecutor,
    ToolRegistry,
    tool,
)

from ...support.polling import PATIENCE
from ...support.sample_tools import (
    Gates,
    add,
    blocked,
    call,
    calls,
    crash,
    echo,
    executor,
    statuses,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise(
        "A-14 A-15 A-16 GR-08 LT-12 LT-16 LT-20 LT-21 LT-25 LT-31 LT-32 LT-33 LT-34 "
        "LT-35 LT-36 LT-37 LT-38 LT-39 LT-42 LT-43 LT-44 OR-01 OR-19 RL-11 RL-27"
    ),
]
BOTH = pytest.mark.parametrize("kind", [SequentialExecutor, ConcurrentExecutor])


@BOTH
async def test_results_are_in_input_order(kind: type[Any]) -> None:
    made = kind(ToolRegistry([echo, add]), guard=None)
    results = await made.execute([*calls("echo", 20), call("add", a=1, b=2)])

    assert [result.content for result in results] == [*range(20), 3]
    assert [result.call_id for result in results] == [*map(str, range(20)), "add"]
    assert await made.execute([]) == []


@BOTH
async def test_each_index_comes_once_in_a_stream(kind: type[Any]) -> None:
    made = kind(ToolRegistry([echo, crash]), guard=None)
    batch = [*calls("echo", 7), call("crash"), call("unknown")]
    async with made.execute_streaming(batch) as results:
        seen = [(index, result.call_id) async for index, result in results]

    assert sorted(seen) == [(i, each.id) for i, each in enumerate(batch)]


async def test_an_empty_stream_ends_at_once() -> None:
    async with executor(echo).execute_streaming([]) as results:
        assert [result async for result in results] == []


async def test_a_stream_is_in_order_of_completion(gates: Gates) -> None:
    order = [3, 0, 2, 1]
    async with executor(gates.tool).execute_streaming(calls("wait", 4)) as results:
        await blocked()
        seen = []
        for number in order:
            gates.gates[number].set()
            index, result = await anext(results)
            seen.append((index, result.content))

    assert seen == [(number, number) for number in order]


async def test_concurrency_is_bounded_over_batches(gates: Gates) -> None:
    made = executor(gates.tool, max_concurrency=3)
    batches = calls("wait", 10)[:5], calls("wait", 10)[5:]
    async with anyio.create_task_group() as tasks:
        for turn in range(2):
            tasks.start_soon(made.execute, batches[turn])
        for _ in range(10):
            await blocked()
            assert len(gates.running) <= 3
            gates.gates[min(gates.running)].set()

    assert gates.peak == 3


@pytest.mark.parametrize("how", ["break", "raise", "return"])
async def test_leaving_a_stream_early_cancels_and_waits(gates: Gates, how: str) -> None:
    made = executor(gates.tool)

    async def consume() -> None:
        async with made.execute_streaming(calls("wait", 5)) as results:
            await blocked()
            gates.gates[2].set()
            async for index, result in results:
                assert (index, result.content) == (2, 2)
                if how == "raise":
                    raise LookupError("mine")
                if how == "return":
                    return
                break

    if how == "raise":
        with pytest.raises(LookupError, match="mine"):
            await consume()
    else:
        await consume()

    # Nothing is awaited between leaving and looking.
    assert gates.cancelled == {0, 1, 3, 4}
    assert gates.running == set()
    recorded = {record.call_id: record.status for record in made.records.all_records()}
    assert recorded == {"2": "ok"} | dict.fromkeys("0134", "cancelled")


async def test_waiting_calls_are_cancelled_and_recorded_too(gates: Gates) -> None:
    made = executor(gates.tool, max_concurrency=1)
    async with made.execute_streaming(calls("wait", 4)):
        await blocked()

    assert gates.cancelled == {0}
    recorded = {record.call_id: record.status for record in made.records.all_records()}
    assert recorded == dict.fromkeys("0123", "cancelled")


async def test_a_cancelled_batch_frees_its_slots(gates: Gates) -> None:
    made = executor(gates.tool, echo, max_concurrency=2)
    with anyio.move_on_after(0):
        await made.execute(calls("wait", 5))
    with anyio.fail_after(PATIENCE):
        batch = [call("echo", f"e{number}", number=1) for number in range(5)]
        results = await made.execute(batch)

    assert statuses(results) == ["ok"] * 5


async def test_a_sequential_stream_stops_early() -> None:
    ran = []

    @tool
    async def note(number: int) -> None:
        ran.append(number)

    made = SequentialExecutor(ToolRegistry([note]), guard=None)
    async with made.execute_streaming(calls("note", 5)) as results:
        async for index, _ in results:
            if index == 0:
                break

    assert ran == sorted(ran)
    assert ran[0] == 0


async def test_a_stream_is_read_inside_its_with() -> None:
    stream = executor(echo).execute_streaming(calls("echo", 1))
    with pytest.raises(InvalidInputError, match="async with"):
        async for _ in stream:
            pass
    async with stream as results:
        assert [index async for index, _ in results] == [0]
    with pytest.raises(InvalidInputError, match="once"):
        async with stream:
            pass


async def test_groups_run_one_at_a_time_and_block_nobody(gates: Gates) -> None:
    @tool(timeout=60)
    async def click(number: int) -> int:
        return await gates.wait(number)

    groups = {"browser": ["click"]}
    made = executor(click, echo, max_concurrency=2, groups=groups)
    async with made.execute_streaming(
        [*calls("click", 3), *[call("echo", f"e{n}", number=n) for n in range(3)]]
    ) as results:
        # Clicks wait for each other, but hold no slot that others could use.
        first = [(await anext(results))[0] for _ in range(3)]
        assert sorted(first) == [3, 4, 5]
        for number in range(3):
            await blocked()
            assert gates.running == {number}
            gates.gates[number].set()
            assert (await anext(results))[0] == number

    assert gates.peak == 1


def test_a_tool_is_in_one_group() -> None:
    with pytest.raises(ConfigError, match="is in the groups"):
        executor(echo, groups={"a": ["echo"], "b": ["echo"]})


async def test_a_call_inside_a_call_waits_for_no_slot() -> None:
    """One slot and nested calls: nobody waits for himself."""

    @tool
    async def outer(number: int) -> Any:
        inner = ToolCall(
            id=f"in{number}", name="echo", arguments={"number": 1}, parent_id="o"
        )
        [result] = await made.execute([inner])
        return result.content

    made = executor(outer, echo, max_concurrency=1)
    with anyio.fail_after(PATIENCE):
        results = await made.execute(calls("outer", 3))

    assert [result.content for result in results] == [1, 1, 1]
    assert {record.call_id for record in made.records.query(parent_id="o")} == {
        "in0",
        "in1",
        "in2",
    }


async def test_tasks_tell_what_they_do() -> None:
    @tool
    async def name() -> str:
        return anyio.get_current_task().name or ""

    batch = [call("name", f"id{number}") for number in range(2)]
    results = await executor(name).execute(batch)

    assert [result.content for result in results] == ["name 0 id0", "name 1 id1"]


user: ContextVar[str] = ContextVar("user", default="nobody")


async def test_contextvars_reach_tools_and_stay_apart() -> None:
    @tool
    async def ask(number: int) -> str:
        seen = user.get()
        user.set(f"changed by {number}")
        await blocked()
        return seen

    @tool
    def ask_in_a_thread(number: int) -> str:
        seen = user.get()
        user.set("changed in a thread")
        return seen

    token = user.set("ada")
    made = executor(ask, ask_in_a_thread)
    results = await made.execute([*calls("ask", 5)])
    threads = [await made.call(call("ask_in_a_thread", "t", number=1))]
    kept = user.get()
    # Tests may share a context.
    user.reset(token)

    assert {result.content for result in results + threads} == {"ada"}
    assert kept == "ada"


async def test_calls_that_share_a_task_share_nothing_else() -> None:
    tasks: list[Any] = []

    @tool
    async def look(number: int) -> list[str | None]:
        seen = user.get()
        user.set(f"changed by {number}")
        task = asyncio.current_task()
        tasks.append(task)
        assert task is not None
        return [seen, task.get_name()]

    made = executor(look)
    results = await made.execute(calls("look", 50))

    expected = [["nobody", f"look {number} {number}"] for number in range(50)]
    assert [result.content for result in results] == expected
    assert len(set(tasks)) < 50, "calls that never wait share a task"


async def test_a_call_that_waits_has_its_task_to_itself() -> None:
    seen: dict[Any, list[int]] = {}

    @tool
    async def look(number: int) -> None:
        seen.setdefault(asyncio.current_task(), []).append(number)
        if number % 2:
            await anyio.lowlevel.checkpoint()

    await executor(look).execute(calls("look", 40))

    assert sorted(number for made in seen.values() for number in made) == [*range(40)]
    assert all(number % 2 == 0 for made in seen.values() for number in made[:-1])


async def test_a_task_that_a_tool_cancelled_takes_nobody_along(gates: Gates) -> None:
    @tool
    async def cancel_and_return(number: int) -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return number

    made = executor(gates.tool, cancel_and_return, echo)
    ends = call("cancel_and_return", "c", number=7)
    batch = [call("wait", "w", number=0), ends, *calls("echo", 5)]
    async with made.execute_streaming(batch) as results:
        await blocked()
        gates.gates[0].set()
        found = dict([result async for result in results])

    assert [found[index].content for index in range(7)] == [0, 7, *range(5)]


async def test_calls_that_never_wait_let_others_have_their_turn() -> None:
    turns: list[str] = []

    async def other() -> None:
        while "end" not in turns:
            turns.append("other")
            await anyio.lowlevel.checkpoint()

    @tool
    async def busy(number: int) -> None:
        turns.append("call")
        began = time.perf_counter()
        while time.perf_counter() - began < 0.002:
            pass

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        await executor(busy).execute(calls("busy", 10))
        turns.append("end")

    assert (
        "other" in turns[turns.index("call") : len(turns) - turns[::-1].index("call")]
    )


async def test_the_context_tells_of_the_call() -> None:
    seen: list[ToolContext] = []
    reports: list[Any] = []

    @tool(timeout=60)
    async def look(context: ToolContext) -> None:
        seen.append(context)
        context.report_progress(1, 2, "half")

    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    registry = ToolRegistry([look], config={"look": {"k": "v"}})
    made = ConcurrentExecutor(registry, guard=None, clock=lambda: noon)
    run = RunContext(confidence=0.5, metadata={"m": 1}, on_progress=reports.append)
    asked = ToolCall(id="c", name="look", agent_id="a", parent_id="p")
    await made.call(asked, run=run)
    [context] = seen

    assert (context.call_id, context.agent_id, context.parent_id) == ("c", "a", "p")
    assert (context.confidence, context.get_metadata("m")) == (0.5, 1)
    assert context.get_config("k") == "v"
    assert context.now() == noon
    remaining = context.remaining()
    assert remaining is not None
    assert 0 < remaining <= 60
    assert context.idempotency_key
    assert [report.message for report in reports] == ["half"]
    record = made.records.get_record("c")
    assert record is not None
    assert record.started_at == noon


async def test_a_batch_keeps_the_tools_it_started_with(gates: Gates) -> None:
    registry = ToolRegistry([gates.tool, echo])
    made = ConcurrentExecutor(registry, guard=None, max_concurrency=1)
    batch = [call("wait", "w", number=0), call("echo", "e", number=1)]
    async with made.execute_streaming(batch) as results:
        await blocked()
        registry.unregister("echo")
        gates.gates[0].set()
        found = [result async for _, result in results]

    # Gone from the registry, but not taken away from who had it.
    assert statuses(found) == ["ok", "ok"]
    assert (await made.call(call("echo", "later", number=1))).status == "error"


async def test_a_tool_that_is_taken_away_ends_its_calls(gates: Gates) -> None:
    registry = ToolRegistry([gates.tool])
    made = ConcurrentExecutor(registry, guard=None)
    async with made.execute_streaming(calls("wait", 2)) as results:
        await blocked()
        await registry.retire("wait", cancel=True)
        found = [result async for _, result in results]

    assert [each.error and each.error.kind for each in found] == ["tool.not_found"] * 2
    assert gates.cancelled == {0, 1}


async def test_an_executor_of_somebody_else_cannot_lose_calls() -> None:
    class Lazy(ToolExecutor):
        async def _run_all(self, turns: Any, names: Any) -> None:
            for turn in list(turns)[1:]:
                await turn()

    made = Lazy(ToolRegistry([echo]), guard=None)
    async with made.execute_streaming(calls("echo", 3)) as results:
        found = {index: result.status async for index, result in results}

    assert found == {0: "error", 1: "ok", 2: "ok"}
    assert statuses(await made.execute(calls("echo", 3))) == ["error", "ok", "ok"]


async def test_tools_of_every_kind_run() -> None:
    class Square(Tool):
        name = "square"
        description = "Squares."

        async def execute(self, number: int) -> int:
            return number * number

    class Rows:
        @tool
        def count(self, number: int) -> int:
            return number + 1

    made = executor(Square(), Rows().count, echo)
    results = await made.execute(
        [call("square", number=3), call("count", number=3), call("echo", number=3)]
    )

    assert [result.content for result in results] == [9, 4, 3]


@pytest.fixture(params=["asyncio", "trio"])
def loop_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_both_event_loops(loop_name: str) -> None:
    @tool(timeout=0.02)
    async def slow() -> None:
        await anyio.sleep_forever()

    async def main() -> list[str]:
        made = executor(add, slow, crash)
        batch = [call("add", a=1, b=2), call("slow"), call("crash")]
        async with made.execute_streaming(batch) as results:
            found = {index: result async for index, result in results}
        return [found[index].status for index in range(3)]

    # In a thread of its own: the shared fixtures hold this one's event loop.
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(lambda: anyio.run(main, backend=loop_name)).result(60)

    assert found == ["ok", "timeout", "error"]


async def test_a_run_is_told_when_the_turn_of_a_call_has_come() -> None:
    gates = Gates()
    told: list[int] = []

    async def tell() -> None:
        told.append(len(gates.running))

    one = executor(gates.tool, max_concurrency=1)
    run = RunContext(on_start=tell)
    async with anyio.create_task_group() as group:
        group.start_soon(partial(one.execute, calls("wait", 2), run=run))
        await blocked()
        assert told == [0]
        gates.gates[0].set()
        await blocked()
        assert told == [0, 0]
        gates.gates[1].set()
