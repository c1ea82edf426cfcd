"""Slots and threads of calls are shared between agents."""

from __future__ import annotations

import threading
from collections import Counter

import anyio
import anyio.to_thread
import pytest

from toolcell.core import ToolCall, ToolExecutionError
from toolcell.tools import ConcurrentExecutor, ToolRegistry, tool
from toolcell.tools.execution.slots import Slots

from ...support.polling import PATIENCE
from ...support.sample_tools import Gates, blocked

pytestmark = pytest.mark.anyio


def calls(agent: str, numbers: range, name: str = "wait") -> list[ToolCall]:
    return [
        ToolCall(id=f"{n}", name=name, arguments={"number": n}, agent_id=agent)
        for n in numbers
    ]


@pytest.mark.promise("R64")
async def test_slow_calls_of_one_agent_keep_no_other_one_waiting(gates: Gates) -> None:
    made = ConcurrentExecutor(ToolRegistry([gates.tool]), guard=None, max_concurrency=3)
    async with anyio.create_task_group() as tasks:

        async def begin(agent: str, numbers: range) -> None:
            for call in calls(agent, numbers):
                tasks.start_soon(made.call, call)
            await blocked()

        await begin("b", range(1))
        gates.gates[0].set()
        await blocked()
        await begin("a", range(10, 20))
        assert gates.running == {10, 11}
        await begin("b", range(20, 23))
        assert gates.running == {10, 11, 20}
        # Who holds fewest comes first, though others came long before.
        await begin("c", range(30, 31))
        gates.gates[10].set()
        await blocked()
        assert gates.running == {11, 20, 30}
        for end, begun in ((30, None), (11, 12), (20, 21)):
            gates.gates[end].set()
            await blocked()
            assert (begun in gates.running) is (begun is not None)
        tasks.cancel_scope.cancel()


@pytest.mark.promise("R64")
async def test_a_slot_goes_to_the_agent_that_holds_fewest() -> None:
    slots, passed = Slots(5), []
    for agent in "aaaab":
        assert slots.take(agent, None)

    async def wait(agent: str) -> None:
        await slots.wait(agent, None)
        passed.append(agent)

    async with anyio.create_task_group() as tasks:
        for agent in "ab":
            tasks.start_soon(wait, agent)
            await blocked()
        slots.release("a", None)
        await blocked()
        # The last free one is for an agent that holds none.
        assert passed == []
        slots.release("a", None)
        await blocked()
        assert passed == ["b"]
        tasks.cancel_scope.cancel()


@pytest.mark.promise("R64")
async def test_one_agent_alone_has_all_slots(gates: Gates) -> None:
    made = ConcurrentExecutor(ToolRegistry([gates.tool]), guard=None, max_concurrency=3)
    async with made.execute_streaming(calls("a", range(5))):
        await blocked()
        assert len(gates.running) == 3


@pytest.mark.promise("R64")
async def test_a_call_waits_for_so_long_and_leaves_its_place(gates: Gates) -> None:
    made = ConcurrentExecutor(
        ToolRegistry([gates.tool]), guard=None, max_concurrency=1, max_wait_seconds=0.01
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.call, calls("a", range(1))[0])
        await blocked()
        result = await made.call(calls("b", range(1, 2))[0])

        assert result.error is not None
        assert "was not made" in result.error.message
        assert gates.running == {0}
        gates.gates[0].set()
    # The slot is free, and nobody waits for it.
    assert made._slots._free == 1
    assert made._slots._waiting == {}


@pytest.mark.promise("R64")
async def test_slots_are_never_more_than_the_limit_and_none_is_lost() -> None:
    slots = Slots(4)
    running: Counter[str] = Counter()

    async def use(agent: str, group: str | None, turns: int) -> None:
        for turn in range(turns):
            if not slots.take(agent, group):
                with anyio.move_on_after(0 if turn % 3 == 0 else PATIENCE) as given_up:
                    await slots.wait(agent, group)
                if given_up.cancelled_caught:
                    continue
            running[agent] += 1
            assert running.total() <= 4
            assert running[agent] < 4 or not slots._is_shared
            await anyio.lowlevel.checkpoint()
            running[agent] -= 1
            slots.release(agent, group)

    async with anyio.create_task_group() as tasks:
        for number in range(24):
            group = "g" if number % 4 == 0 else None
            tasks.start_soon(use, "abc"[number % 3], group, 20)

    assert (slots._free, slots._waiting, slots._busy) == (4, {}, set())
    assert not slots._held


@pytest.mark.promise("R65")
async def test_threads_that_one_agent_left_behind_are_half_at_most() -> None:
    entered, go_on = threading.Semaphore(0), threading.Event()

    @tool(timeout=0.05)
    def stuck(number: int) -> None:
        entered.release()
        go_on.wait(PATIENCE)

    @tool
    def quick(number: int) -> int:
        return number

    made = ConcurrentExecutor(ToolRegistry([stuck, quick]), guard=None, max_threads=4)
    [first] = calls("b", range(1), "quick")
    assert (await made.call(first)).ok
    try:
        # A slow machine starts fewer threads before the calls are out of time.
        while made.still_running < 2:
            await made.execute(calls("a", range(10, 16), "stuck"))
        await made.execute(calls("a", range(10, 16), "stuck"))
        assert made.still_running == 2
        [mine] = calls("a", range(20, 21), "quick")
        [theirs] = calls("b", range(20, 21), "quick")
        refused = await made.call(mine)
        assert refused.error and "of this agent" in refused.error.message
        assert (await made.call(theirs)).ok
    finally:
        go_on.set()


async def test_a_group_of_others_keeps_nobody_waiting() -> None:
    slots = Slots(2)
    assert slots.take("a", "g")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slots.wait, "b", "g")
        await blocked()
        assert slots.take("c", None)
        slots.release("a", "g")
        await blocked()
    with pytest.raises(ToolExecutionError):
        slots._wait_seconds = 0.0
        await slots.wait("a", None)
