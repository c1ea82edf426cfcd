"""How runs are placed, and what a cut link costs, on nodes without cells."""

from __future__ import annotations

import gc
import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from toolcell.cluster import ClusterSandbox
from toolcell.cluster.driver import nodes as nodes_module
from toolcell.cluster.spi import NodeRecord
from toolcell.core import CellLostError, SandboxUnavailableError

from ..support.cluster.null_nodes import (
    NullSandbox,
    driver,
    null_node,
    wire_to,
)
from ..support.cluster.patience import wait_briefly
from ..support.polling import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def nodes_of(
    stack: AsyncExitStack, count: int, slots: int
) -> tuple[list[NullSandbox], list[NodeRecord]]:
    made = [
        await stack.enter_async_context(null_node(f"n{number}", slots))
        for number in range(count)
    ]
    return [cells for cells, _ in made], [record for _, record in made]


async def until_begun(cells: list[NullSandbox], count: int) -> None:
    """Wait until nodes have got so many runs."""
    await until(lambda: sum(len(cell.begun) for cell in cells) == count)


@pytest.mark.promise("cluster-03")
async def test_runs_spread_over_the_nodes(stack: AsyncExitStack) -> None:
    cells, records = await nodes_of(stack, 4, 4)

    async with driver(*records) as sandbox, anyio.create_task_group() as tasks:
        for _ in range(40):
            tasks.start_soon(sandbox.run, "1")
        for whole in (16, 32, 40):
            await until_begun(cells, whole)
            for cell in cells:
                cell.release()
    assert sum(len(cell.begun) for cell in cells) == 40
    assert {len(cell.begun) for cell in cells} <= set(range(8, 13))


@pytest.mark.promise("cluster-27")
async def test_no_node_gets_a_herd(stack: AsyncExitStack) -> None:
    cells, records = await nodes_of(stack, 16, 8)
    async with driver(*records) as sandbox, anyio.create_task_group() as tasks:
        for whole in (40, 80, 100):
            for _ in range(whole - sum(len(cell.begun) for cell in cells)):
                tasks.start_soon(sandbox.run, "1")
            await until_begun(cells, whole)
            held = [cell.active_cells for cell in cells]
            assert max(held) - min(held) <= 1
        tasks.cancel_scope.cancel()


@pytest.mark.promise("cluster-26")
async def test_a_slow_node_gets_fewer_runs(stack: AsyncExitStack) -> None:
    cells, records = await nodes_of(stack, 3, 4)
    slow = cells[0]
    for cell in cells[1:]:
        cell.waits = False
    async with driver(*records) as sandbox, anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(sandbox.run, "1")
        # It ends none of them, and holds up no other.
        await until_begun(cells, 100)
        assert len(slow.begun) <= 4
        slow.release()
    assert sum(len(cell.begun) for cell in cells) == 100


@pytest.mark.promise("cluster-25")
async def test_an_agent_with_many_runs_does_not_hold_up_another(
    stack: AsyncExitStack,
) -> None:
    [cells], [record] = await nodes_of(stack, 1, 2)
    async with driver(record) as sandbox, anyio.create_task_group() as tasks:

        async def run(agent: str) -> None:
            await sandbox.run(agent, agent_id=agent)

        for _ in range(200):
            tasks.start_soon(run, "many")
        await until(lambda: sandbox.pool_stats().waiting == 198)
        for _ in range(10):
            tasks.start_soon(run, "few")
        await until(lambda: sandbox.pool_stats().waiting == 208)
        while cells.begun.count("few") < 10:
            whole = len(cells.begun) + cells.active_cells
            cells.release()
            await until_begun([cells], whole)
        # One of two places at each turn: ten turns, and those that ran before.
        assert cells.begun.count("many") <= 2 + 10 + 2
        cells.waits = False
        cells.release()


@pytest.mark.promise("cluster-24")
async def test_a_full_queue_refuses_the_next(stack: AsyncExitStack) -> None:
    [cells], [record] = await nodes_of(stack, 1, 1)
    async with driver(record) as sandbox, anyio.create_task_group() as tasks:
        for _ in range(1 + cells.config.max_queue):
            tasks.start_soon(sandbox.run, "1")
        await until(lambda: sandbox.pool_stats().waiting == cells.config.max_queue)
        with pytest.raises(SandboxUnavailableError) as caught:
            await sandbox.run("1")
        assert caught.value.details["reason"] == "queue_full"
        tasks.cancel_scope.cancel()


@pytest.mark.promise("cluster-23")
async def test_a_batch_reads_no_further_than_it_can_run(stack: AsyncExitStack) -> None:
    cells, records = await nodes_of(stack, 2, 4)
    read = itertools.count()
    last = 0

    def endless() -> Iterator[str]:
        nonlocal last
        for last in read:
            yield str(last)

    async with driver(*records) as sandbox:
        async with sandbox.map(endless(), ordered=False) as results:
            async with anyio.create_task_group() as tasks:
                found: list[Any] = []

                async def take() -> None:
                    async for result in results:
                        found.append(result)
                        if len(found) == 200:
                            return

                tasks.start_soon(take)
                await until(lambda: sum(cell.active_cells for cell in cells) == 8)
                assert last <= 3 * 8
                for cell in cells:
                    cell.waits = False
                    cell.release()
        assert last <= 200 + 3 * 8


@pytest.mark.promise("cluster-11")
async def test_a_cut_link_answers_each_run_once(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes_module, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(nodes_module, "_LOOK_SECONDS", 0.01)
    cells, records = await nodes_of(stack, 2, 4)
    wires = [await stack.enter_async_context(wire_to(record)) for record in records]
    for cell in cells:
        cell.waits = False
    chance = random.Random(19)
    answers: Counter[str] = Counter()
    lost = 0
    async with driver(*(wire.record for wire in wires)) as sandbox:

        async def run(code: str) -> None:
            nonlocal lost
            try:
                result = await sandbox.run(code)
                assert result.value == code
                answers[code] += 1
            except CellLostError as error:
                assert error.details["reason"] == "node_lost"
                lost += 1

        for turn in range(100):
            chance.choice(wires).bytes_left = chance.randrange(600)
            async with anyio.create_task_group() as tasks:
                for number in range(8):
                    tasks.start_soon(run, f"{turn} {number}")
    assert max(answers.values()) == 1
    assert len(answers) + lost == 800
    assert lost > 10
    # Nothing is tried again unasked.
    assert max(Counter(code for cell in cells for code in cell.begun).values()) == 1


async def test_a_standstill_of_this_process_is_no_silence_of_a_node(
    stack: AsyncExitStack,
) -> None:
    [cells], [record] = await nodes_of(stack, 1, 1)
    cells.waits = False
    async with driver(record, lost_seconds=1.0) as sandbox:
        [node] = sandbox._nodes.open
        # All tasks and timers stand still.
        time.sleep(1.5)
        assert (await sandbox.run("1")).value == "1"
        assert sandbox._nodes.open == (node,)


@pytest.mark.promise("cluster-37")
async def test_a_byte_that_is_changed_on_its_way_ends_the_link(
    stack: AsyncExitStack,
) -> None:
    [cells], [record] = await nodes_of(stack, 1, 1)
    wire = await stack.enter_async_context(wire_to(record))
    async with driver(wire.record) as sandbox, anyio.create_task_group() as tasks:

        async def run() -> None:
            with pytest.raises(CellLostError):
                await sandbox.run("1")

        tasks.start_soon(run)
        await until(lambda: cells.active_cells == 1)
        wire.flips = True
        cells.release()


async def losing(
    stack: AsyncExitStack, count: int, **options: Any
) -> tuple[ClusterSandbox, list[NullSandbox]]:
    """Return a driver whose nodes are lost by each program that says so."""
    cells, records = await nodes_of(stack, count, 1)
    wires = [await stack.enter_async_context(wire_to(record)) for record in records]

    def kill(number: int) -> Any:
        async def on_run(code: str) -> None:
            if code == "kill":
                await wires[number].cut()
                await anyio.sleep_forever()

        return on_run

    for number, each in enumerate(cells):
        each.on_run = kill(number)
    made = driver(*(wire.record for wire in wires), **options)
    return await stack.enter_async_context(made), cells


@pytest.mark.promise("cluster-17")
async def test_a_lost_program_is_not_run_again_unasked(stack: AsyncExitStack) -> None:
    sandbox, cells = await losing(stack, 3)
    with pytest.raises(CellLostError):
        await sandbox.run("kill")
    assert sum(len(cell.begun) for cell in cells) == 1


@pytest.mark.promise("cluster-19")
async def test_a_program_that_ends_its_node_ends_two(stack: AsyncExitStack) -> None:
    sandbox, cells = await losing(stack, 3, retry_lost=True)
    with pytest.raises(CellLostError):
        await sandbox.run("kill")
    assert sorted(len(cell.begun) for cell in cells) == [0, 1, 1]
    assert (await sandbox.run("1")).value == "1"


@pytest.mark.promise("cluster-17")
async def test_a_lost_program_is_not_run_again_on_the_same_node(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes_module, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(nodes_module, "_LOOK_SECONDS", 0.01)
    sandbox, [cells] = await losing(stack, 1, retry_lost=True)
    with pytest.raises(CellLostError):
        await sandbox.run("kill")
    assert cells.begun == ["kill"]
    # It is back, and takes other programs.
    assert (await sandbox.run("1")).value == "1"


@pytest.mark.promise("cluster-38")
async def test_large_results_hold_up_no_other_run(stack: AsyncExitStack) -> None:
    [cells], [record] = await nodes_of(stack, 1, 2)
    ended: list[str] = []
    async with driver(record) as sandbox, anyio.create_task_group() as tasks:

        async def run(code: str) -> None:
            await sandbox.run(code)
            ended.append(code[:5])

        tasks.start_soon(run, "large" + "x" * 900_000)
        await until(lambda: cells.active_cells == 1)
        tasks.start_soon(run, "small")
        await until(lambda: cells.active_cells == 2)
        cells.release()
    assert ended == ["small", "large"]


@pytest.mark.promise("cluster-12")
async def test_what_is_being_sent_when_a_link_breaks_is_lost(
    stack: AsyncExitStack,
) -> None:
    [_], [record] = await nodes_of(stack, 1, 400)
    wire = await stack.enter_async_context(wire_to(record))
    lost = 0
    async with driver(wire.record) as sandbox:
        wire.holds = True
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:

                async def run() -> None:
                    nonlocal lost
                    with pytest.raises(CellLostError):
                        await sandbox.run("x" * 60_000)
                    lost += 1

                # More than the buffers of two sockets take.
                for _ in range(400):
                    tasks.start_soon(run)
                await anyio.wait_all_tasks_blocked()
                await wire.cut()
    assert lost == 400


@pytest.mark.promise("cluster-12")
async def test_who_tries_again_at_once_gets_a_new_link(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes_module, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(nodes_module, "_LOOK_SECONDS", 0.01)
    [cells], [record] = await nodes_of(stack, 1, 1)
    cells.waits = False
    async with driver(record) as sandbox:
        [node] = sandbox._nodes.open
        node.link.give_up("it takes nothing")
        for _ in range(100):
            try:
                assert (await sandbox.run("1")).value == "1"
                break
            except CellLostError:
                pass
        else:
            pytest.fail("the link that is gone is still used")


@pytest.mark.promise("cluster-50")
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_nothing_is_left_of_a_driver(anyio_backend: str) -> None:
    async def once() -> None:
        async with null_node("one", 2) as (cells, record):
            cells.waits = False
            async with driver(record) as sandbox:
                assert (await sandbox.run("1")).value == "1"

    await once()
    before = left()
    for _ in range(3):
        await once()
    await until(lambda: left() == before)


def left() -> tuple[int, set[str]]:
    """Return the open files of this process, and its threads but for pools of loops."""
    gc.collect()
    names = {each.name for each in threading.enumerate()}
    files = len(os.listdir("/proc/self/fd"))
    pools = ("Trio", "asyncio_")
    return files, {name for name in names if not name.startswith(pools)}


@pytest.mark.promise("cluster-12")
async def test_runs_wait_for_credit_for_a_while_only(stack: AsyncExitStack) -> None:
    """Those that came before the credit went, and those that came after it."""
    [_], [record] = await nodes_of(stack, 1, 1)
    failed: list[str] = []
    async with driver(record) as sandbox:
        wait_briefly(sandbox)
        async with anyio.create_task_group() as tasks:

            async def run(code: str) -> None:
                try:
                    await sandbox.run(code)
                except SandboxUnavailableError:
                    failed.append(code)

            tasks.start_soon(run, "holds the place")
            await until(lambda: sandbox.active_cells == 1)
            tasks.start_soon(run, "before")
            await until(lambda: sandbox.pool_stats().waiting == 1)
            [node] = sandbox._nodes.open
            node.credit = 0
            sandbox._nodes._resize()
            await until(lambda: failed == ["before"])
            tasks.start_soon(run, "after")
            await until(lambda: failed == ["before", "after"])
            tasks.cancel_scope.cancel()
