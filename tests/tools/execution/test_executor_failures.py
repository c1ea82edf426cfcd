"""Failures of tools are results, and no call touches another."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Mapping
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from toolcell.core import (
    ConfigError,
    ToolCall,
    ToolError,
    ToolExecutionError,
    ToolNotFoundError,
    ToolResult,
)
from toolcell.guard import AgentPolicy
from toolcell.tools import (
    ConcurrentExecutor,
    ToolContext,
    ToolExecutionRecord,
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

pytestmark = pytest.mark.anyio


async def given_up(
    made: ConcurrentExecutor, name: str
) -> tuple[ToolResult, ToolExecutionRecord]:
    """Call a tool until its deadline comes after its thread, and not before."""
    for number in itertools.count():
        result = await made.call(call(name, f"{number}"))
        record = made.records.get_record(f"{number}")
        assert record is not None
        assert result.status == "timeout"
        if record.still_running:
            return result, record
    raise AssertionError("it is called until it is given up")


@pytest.mark.promise("LT-35", "RG-33")
async def test_tools_that_cannot_be_stopped_are_counted() -> None:
    """Control is back at the deadline, and nobody pretends that it is over."""
    entered, go_on = threading.Event(), threading.Event()

    @tool(timeout=0.02)
    def stuck() -> None:
        entered.set()
        go_on.wait(PATIENCE)

    made = executor(stuck)
    result, record = await given_up(made, "stuck")

    assert entered.wait(PATIENCE)
    assert result.error is not None
    assert result.error.details["still_running"] is True
    assert record.backend == "thread"
    assert made.still_running == 1
    go_on.set()
    with anyio.fail_after(PATIENCE):
        while made.still_running:
            await anyio.lowlevel.checkpoint()


@pytest.mark.promise("RL-11")
async def test_leaving_a_stream_leaves_stuck_threads_counted() -> None:
    entered, go_on = threading.Event(), threading.Event()

    @tool
    def stuck() -> None:
        entered.set()
        go_on.wait(PATIENCE)

    made = executor(stuck, echo)
    async with made.execute_streaming(
        [call("stuck"), call("echo", number=1)]
    ) as stream:
        async for index, _ in stream:
            assert index == 1
            await anyio.to_thread.run_sync(entered.wait, PATIENCE)
            break
    record = made.records.get_record("stuck")

    assert record is not None
    assert (record.status, record.still_running) == ("cancelled", True)
    assert made.still_running == 1
    go_on.set()


@pytest.mark.promise("RA-05", "LT-11", "OR-04")
async def test_threads_left_behind_are_bounded() -> None:
    entered, go_on = threading.Semaphore(0), threading.Event()

    @tool
    def stuck(number: int) -> None:
        entered.release()
        go_on.wait(PATIENCE)

    made = executor(stuck, max_threads=3)
    first, later = calls("stuck", 5)[:3], calls("stuck", 5)[3:]
    async with made.execute_streaming(first):
        for _ in first:
            await anyio.to_thread.run_sync(entered.acquire, True, PATIENCE)
    assert made.still_running == 3

    refused = [result.error for result in await made.execute(later)]
    assert len(refused) == 2
    assert all(error and "in threads already" in error.message for error in refused)
    go_on.set()


async def test_a_sync_tool_can_look_whether_it_was_given_up() -> None:
    seen: list[bool] = []
    done = threading.Event()

    @tool(timeout=0.02)
    def polite(context: ToolContext) -> None:
        while not context.cancelled:
            done.wait(0.001)
        seen.append(True)
        done.set()

    await given_up(executor(polite), "polite")

    assert await anyio.to_thread.run_sync(done.wait, PATIENCE)
    assert seen == [True]


@pytest.mark.promise("GR-11")
async def test_timeouts_end_async_work() -> None:
    ended = []

    @tool(timeout=0.01)
    async def sleeper() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    made = executor(sleeper)
    result = await made.call(call("sleeper"))

    assert ended == [True]
    assert (result.status, result.error and result.error.kind) == (
        "timeout",
        "tool.timeout",
    )
    record = made.records.get_record("sleeper")
    assert record is not None
    assert record.duration_ms >= 10


async def test_a_tool_deals_with_what_it_waits_for() -> None:
    """What is thrown into its pauses arrives there, its own deadlines included."""

    @tool
    async def patient() -> list[str]:
        seen = []
        with anyio.move_on_after(0) as scope:
            await anyio.sleep_forever()
        seen.append(f"given up: {scope.cancelled_caught}")
        failing = asyncio.get_running_loop().create_future()
        failing.get_loop().call_soon(failing.set_exception, LookupError())
        try:
            await failing
        except LookupError:
            seen.append("failed")
        await anyio.lowlevel.checkpoint()
        return seen

    result = await executor(patient).call(call("patient"))

    assert result.content == ["given up: True", "failed"]


async def test_a_tool_that_held_up_the_loop_is_stopped_at_its_pause() -> None:
    """Its deadline went by while nothing else could run."""

    @tool(timeout=0.01)
    async def busy() -> None:
        end = anyio.current_time() + 0.02
        while anyio.current_time() < end:
            pass
        await anyio.sleep(PATIENCE)

    result = await executor(busy).call(call("busy"))

    assert result.status == "timeout"


@pytest.mark.promise("RG-35")
async def test_a_tools_own_timeout_error_is_its_own() -> None:
    @tool
    async def confused() -> None:
        raise TimeoutError("of a socket")

    result = await executor(confused).call(call("confused"))

    assert result.status == "error"
    assert result.error is not None
    assert result.error.kind == "tool.execution"


@pytest.mark.promise("OR-20", "RO-01", "RO-04", "RL-10", "RG-43")
@pytest.mark.parametrize(
    "bad",
    [
        call("crash"),
        call("unknown"),
        call("add", a="1", b=2),
        {"id": "m", "name": "add", "arguments": "{not json"},
        {"name": "add"},
        {"id": 3, "name": None, "arguments": []},
        "not a call",
        call("exits"),
        call("exits_in_a_thread"),
        call("interrupts"),
        call("returns_too_many_digits"),
        call("cancels_itself"),
        call("returns_an_object"),
        call("returns_nan"),
        call("breaks_str"),
    ],
    ids=lambda bad: bad.name if isinstance(bad, ToolCall) else "malformed",
)
async def test_a_bad_call_never_touches_its_siblings(bad: Any, gates: Gates) -> None:
    @tool
    async def exits() -> None:
        raise SystemExit(3)

    @tool
    def exits_in_a_thread() -> None:
        raise SystemExit(3)

    @tool
    def interrupts() -> None:
        raise KeyboardInterrupt

    @tool
    async def returns_too_many_digits() -> int:
        return 10**6000

    @tool
    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    @tool
    async def returns_an_object() -> Any:
        return object()

    @tool
    async def returns_nan() -> float:
        return float("nan")

    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    @tool
    async def breaks_str() -> None:
        raise Odd

    odd = [exits, exits_in_a_thread, interrupts, cancels_itself, returns_an_object]
    odd.append(returns_too_many_digits)
    made = executor(add, crash, gates.tool, *odd, returns_nan, breaks_str)
    batch = [call("wait", "w", number=0), bad, call("add", "a", a=1, b=2)]
    async with made.execute_streaming(batch) as results:
        found = dict([await anext(results), await anext(results)])
        assert set(found) == {1, 2}
        gates.gates[0].set()
        found |= dict([await anext(results)])

    assert statuses([found[index] for index in range(3)]) == ["ok", "error", "ok"]
    assert [result.content for result in (found[0], found[2])] == [0, 3]
    assert found[1].call_id
    # The malformed one has a record like any other.
    assert {record.status for record in made.records.all_records()} == {"ok", "error"}


@pytest.mark.promise("OR-17", "A-21")
async def test_what_a_crash_says_stays_in_the_record() -> None:
    made = executor(crash)
    result = await made.call(call("crash"))
    record = made.records.get_record("crash")

    assert "hunter2" not in result.to_text()
    assert result.error is not None
    assert result.error.message == "crash failed (ValueError)"
    assert record is not None
    assert "hunter2 is the password" in str(record.error_detail)
    assert "ValueError" in str(record.error_detail)


@pytest.mark.promise("OR-16", "RL-21")
async def test_what_a_tool_tells_the_model_reaches_it() -> None:
    @tool
    async def picky(city: str) -> None:
        raise ToolError("no such city", hint="ask for the country", details={"n": 1})

    result = await executor(picky).call(call("picky", city="X"))

    assert result.error is not None
    assert (result.error.message, result.error.hint) == (
        "no such city",
        "ask for the country",
    )
    assert "ask for the country" in result.to_text()


@pytest.mark.promise("GR-10", "RG-36")
async def test_validation_fails_before_any_side_effect() -> None:
    ran = []

    @tool
    async def act(number: int) -> None:
        ran.append(number)

    made = executor(act)
    bad: list[Mapping[str, Any]] = [{}, {"number": "2"}, {"number": 1, "x": 2}]
    results = [await made.call(call("act", str(i), **a)) for i, a in enumerate(bad)]

    assert ran == []
    assert [r.error and r.error.kind for r in results] == ["tool.validation"] * 3
    assert [r.verdict for r in made.records.all_records()] == ["not_asked"] * 3


@pytest.mark.promise("GR-12", "X-03", "OR-18")
async def test_errors_are_raised_where_asked_for() -> None:
    ran = []

    @tool
    async def last() -> None:
        await blocked()
        ran.append(True)

    made = executor(crash, last, echo, raise_on_error=True)
    with pytest.raises(ToolExecutionError, match="crash failed") as raised:
        await made.execute([call("last"), call("crash")])
    assert ran == [True], "siblings end first"
    assert isinstance(raised.value.__cause__, ValueError)
    with pytest.raises(ToolNotFoundError):
        await made.call(call("unknown"))
    with pytest.raises(ToolExecutionError):
        async with made.execute_streaming([call("crash", "again")]) as results:
            async for _ in results:
                pass

    assert (await made.call(call("echo", number=1))).content == 1


@pytest.mark.promise("LT-40")
async def test_a_call_that_cancels_its_own_task_ends_alone(gates: Gates) -> None:
    @tool
    async def leaves() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await anyio.sleep_forever()

    made = executor(leaves, gates.tool, echo, max_concurrency=2)
    leaving = [call("leaves", f"l{number}") for number in range(3)]
    batch = [call("wait", number=0), *leaving, *calls("echo", 3)]
    with anyio.fail_after(PATIENCE):
        async with made.execute_streaming(batch) as results:
            await blocked()
            gates.gates[0].set()
            found = dict([result async for result in results])

    assert sorted(found) == list(range(7)), "one end for each, and no wait for more"
    assert [found[0].content, *[found[index].content for index in (4, 5, 6)]] == [
        0,
        *range(3),
    ]
    assert statuses([found[index] for index in (1, 2, 3)]) == ["error"] * 3
    records = [made.records.query(call_id=each.id) for each in leaving]
    assert [[each.status for each in of] for of in records] == [["error"]] * 3


@pytest.mark.promise("LT-41")
async def test_faults_while_a_stream_is_left_are_recorded(gates: Gates) -> None:
    @tool
    async def breaks_on_the_way_out() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("hunter2")

    made = executor(breaks_on_the_way_out, gates.tool)
    batch = [call("breaks_on_the_way_out", "b"), call("wait", number=0)]
    async with made.execute_streaming(batch):
        await blocked()

    [fault, other] = sorted(made.records.all_records(), key=lambda each: each.call_id)
    assert (fault.status, fault.error_kind) == ("error", "tool.execution")
    assert "hunter2" in str(fault.error_detail)
    assert other.status == "cancelled"


@pytest.mark.promise("RL-13")
async def test_a_result_is_no_signal_whatever_it_says() -> None:
    forged = {"status": "denied", "error": {"kind": "guard.denied"}, "interrupt": True}

    @tool
    async def forge() -> dict[str, Any]:
        return forged

    made = executor(forge)
    result = await made.call(call("forge"))
    record = made.records.get_record("forge")

    assert (result.status, result.error, result.content) == ("ok", None, forged)
    assert record is not None
    assert (record.status, record.final, record.error_kind) == ("ok", True, None)


@pytest.mark.parametrize(
    "wrong",
    [{"max_concurrency": 0}, {"timeout_seconds": 0}, {"max_threads": 0}],
)
def test_bad_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        executor(echo, **wrong)


@pytest.mark.parametrize(
    ("registry", "guard", "message"),
    [
        ([echo], None, "registry is a ToolRegistry, not of type list"),
        (
            ToolRegistry([echo]),
            [AgentPolicy(agent_id="a")],
            "guard is an ActionGuard, not of type list",
        ),
        (
            ToolRegistry([echo]),
            AgentPolicy(agent_id="a"),
            "guard is an ActionGuard, not of type Agent",
        ),
    ],
    ids=["tools", "policies", "policy"],
)
def test_what_is_no_registry_or_no_guard_is_refused_at_once(
    registry: Any, guard: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ConcurrentExecutor(registry, guard=guard)


@pytest.mark.promise("RG-39")
def test_a_guard_is_named_even_if_it_is_none() -> None:
    with pytest.raises(TypeError, match="guard"):
        ConcurrentExecutor(ToolRegistry([echo]))  # type: ignore[call-arg]


async def test_a_fault_of_the_records_is_one_calls_fault() -> None:
    from toolcell.tools.spi import MemoryRecords

    class Broken(MemoryRecords):
        def add(self, record: ToolExecutionRecord) -> None:
            if record.call_id == "1":
                raise RuntimeError("disk on fire")
            super().add(record)

    made = executor(echo, records=Broken())
    results = await made.execute(calls("echo", 3))

    assert statuses(results) == ["ok", "error", "ok"]
    assert "fire" not in results[1].to_text()
