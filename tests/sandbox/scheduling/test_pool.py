"""Cells that are ready before they are asked for, and turns that are fair."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from pydantic import ValidationError

from toolcell.core import SandboxUnavailableError
from toolcell.sandbox import Limits, SandboxConfig, SandboxManager
from toolcell.sandbox.scheduling import fair_queue
from toolcell.sandbox.scheduling import pool as pool_module
from toolcell.sandbox.scheduling.cell_events import CellEvents
from toolcell.sandbox.scheduling.fair_queue import FairQueue
from toolcell.sandbox.scheduling.pool import Pool

from ...conftest import SUBPROCESS, BackendRow
from ...support.polling import until

pytestmark = pytest.mark.anyio


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Line:
    """A queue with one place that is taken, and tasks that wait for it."""

    def __init__(self, tasks: Any, max_waiting: int = 100) -> None:
        self.queue = FairQueue(1, max_waiting)
        self.order: list[str] = []
        self.refused: list[tuple[str, SandboxUnavailableError]] = []
        self._tasks = tasks

    async def wait(self, name: str, agent: str | None = None) -> None:
        """Have a task wait in the line of an agent: of the first letter."""
        self._tasks.start_soon(self._one, name, agent or name[0])
        await anyio.wait_all_tasks_blocked()

    async def _one(self, name: str, agent: str) -> None:
        try:
            entered = await self.queue.enter(agent)
        except SandboxUnavailableError as error:
            self.refused.append((name, error))
            return
        self.order.append(name)
        self.queue.leave(entered)


@pytest.mark.promise("P-26")
async def test_agents_take_turns() -> None:
    async with anyio.create_task_group() as tasks:
        line = Line(tasks)
        entered = await line.queue.enter("a")
        for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
            await line.wait(name)
        assert (line.queue.waiting, line.order) == (7, [])
        line.queue.leave(entered)

    assert line.order == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]
    assert line.queue.waiting == 0


@pytest.mark.promise("P-26")
async def test_a_free_place_is_taken_without_waiting() -> None:
    queue = FairQueue(2, 0)
    with anyio.CancelScope() as scope:
        scope.cancel()
        # Nothing here yields to the event loop, so nothing is cancelled.
        first, second = await queue.enter(None), await queue.enter("a")
    queue.leave(first)
    queue.leave(second)
    with pytest.raises(SandboxUnavailableError, match="0 runs in the queue"):
        for _ in range(3):
            await queue.enter(None)


@pytest.mark.promise("E-60", "P-26")
async def test_a_flood_does_not_keep_others_out() -> None:
    async with anyio.create_task_group() as tasks:
        line = Line(tasks, max_waiting=4)
        entered = await line.queue.enter("a")
        for name in ("a1", "a2", "a3", "a4", "a5", "b1", "b2", "b3", "c1"):
            await line.wait(name)
        assert line.queue.waiting == 4
        line.queue.leave(entered)

    # The longest line gives way while it is longer by two: a4 to b1, a3 to b2,
    # a2 to c1.
    assert [name for name, _ in line.refused] == ["a5", "a4", "a3", "b3", "a2"]
    assert line.order == ["a1", "b1", "c1", "b2"]


@pytest.mark.promise("E-60", "P-27")
async def test_a_full_queue_says_when_to_come_again() -> None:
    clock = Clock()
    queue = FairQueue(2, 0, clock)
    for seconds in (3.0, 3.0):
        entered = await queue.enter("a")
        clock.now += seconds
        queue.leave(entered)
    await queue.enter("a")
    await queue.enter("a")

    with pytest.raises(SandboxUnavailableError) as caught:
        await queue.enter("b")
    assert caught.value.retryable
    assert caught.value.details == {
        "reason": "queue_full",
        "retry_after": 1.5,
        "waiting": 0,
    }


@pytest.mark.promise("P-26")
async def test_who_gives_up_loses_no_place() -> None:
    queue = FairQueue(1, 10)
    entered = await queue.enter(None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.enter, "a")
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert queue.waiting == 0
    late = asyncio.create_task(queue.enter("a"))
    await anyio.wait_all_tasks_blocked()
    # Its turn comes, and it is cancelled before it can run.
    queue.leave(entered)
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late

    with anyio.fail_after(60):
        queue.leave(await queue.enter("b"))


@pytest.mark.promise("P-27")
async def test_closing_refuses_who_waits_and_who_comes() -> None:
    async with anyio.create_task_group() as tasks:
        line = Line(tasks)
        entered = await line.queue.enter("a")
        await line.wait("a1")
        await line.wait("b1")
        line.queue.close()
        await line.wait("c1")
    line.queue.leave(entered)

    assert [name for name, _ in line.refused] == ["a1", "b1", "c1"]
    assert {error.message for _, error in line.refused} == {"the manager was closed"}
    assert line.queue.waiting == 0


@pytest.mark.promise("P-26")
@pytest.mark.parametrize("seed", range(20))
async def test_places_are_neither_lost_nor_made(seed: int) -> None:
    """Any order of coming, going, giving up and being refused."""
    rolls = random.Random(seed)
    places, queue = rolls.randint(1, 4), None
    queue = FairQueue(places, rolls.randint(0, 6))
    inside = 0

    async def one(agent: str, patience: int, stay: int) -> None:
        nonlocal inside
        with anyio.CancelScope() as scope:
            tasks.start_soon(give_up, scope, patience)
            try:
                entered = await queue.enter(agent)
            except SandboxUnavailableError:
                return
            inside += 1
            assert inside <= places
            try:
                for _ in range(stay):
                    await anyio.lowlevel.checkpoint()
            finally:
                inside -= 1
                queue.leave(entered)

    async def give_up(scope: anyio.CancelScope, patience: int) -> None:
        for _ in range(patience):
            await anyio.lowlevel.checkpoint()
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        for _ in range(200):
            await anyio.lowlevel.checkpoint()
            agent, stay = rolls.choice("abc"), rolls.randint(0, 5)
            tasks.start_soon(one, agent, rolls.randint(0, 12), stay)

    assert (inside, queue.waiting) == (0, 0)
    with anyio.fail_after(60):
        for _ in range(places):
            await queue.enter(None)


@pytest.mark.promise("E-60", "P-26")
async def test_a_busy_agent_does_not_starve_another(backend: BackendRow) -> None:
    order: list[str] = []
    async with SandboxManager(backend.config(max_concurrency=1)) as manager:

        async def one(agent: str) -> None:
            await manager.run("1", agent_id=agent)
            order.append(agent)

        async with anyio.create_task_group() as tasks:
            async with manager.session(agent_id="busy"):
                for agent in ("busy", "busy", "busy", "busy", "quiet"):
                    tasks.start_soon(one, agent)
                    await anyio.wait_all_tasks_blocked()
                assert manager.pool_stats().waiting == 5

    assert order.index("quiet") == 1


@pytest.mark.promise("E-60", "P-27")
async def test_one_too_many_hears_why_and_when() -> None:
    config = SUBPROCESS.config(max_concurrency=1, max_queue=0)
    async with SandboxManager(config) as manager, manager.session():
        with pytest.raises(SandboxUnavailableError) as caught:
            await manager.run("1", agent_id="b")

    assert caught.value.details["reason"] == "queue_full"
    assert caught.value.details["retry_after"] > 0


@pytest.mark.promise("P-27")
async def test_who_waits_hears_that_the_manager_closes() -> None:
    said: list[str] = []
    opened = anyio.Event()

    async def hold(manager: SandboxManager) -> None:
        with pytest.raises(SandboxUnavailableError):
            await manager.run("1")
        said.append("told")

    async with anyio.create_task_group() as tasks:
        async with SandboxManager(SUBPROCESS.config(max_concurrency=1)) as manager:
            session = manager.session()
            await session.__aenter__()
            tasks.start_soon(hold, manager)
            await anyio.wait_all_tasks_blocked()
            opened.set()
        # The session is still open.
        with anyio.fail_after(60):
            while not said:
                await anyio.lowlevel.checkpoint()
        await session.__aexit__(None, None, None)

    assert said == ["told"]


def full(manager: SandboxManager) -> bool:
    stats = manager.pool_stats()
    return stats.ready == stats.size


@pytest.mark.promise("P-25")
async def test_the_pool_says_how_it_stands(backend: BackendRow) -> None:
    async with SandboxManager(backend.config(pool=2)) as manager:
        await until(lambda: full(manager))
        before = manager.pool_stats()
        for _ in range(3):
            assert (await manager.run("1")).value == 1
        await until(lambda: full(manager))
        after = manager.pool_stats()

    assert (before.size, before.made, before.discarded, before.waiting) == (2, 2, 0, 0)
    assert (after.ready, after.discarded) == (2, 0)
    assert after.made > before.made
    with pytest.raises(ValidationError, match="frozen"):
        after.size = 3
    with pytest.raises(SandboxUnavailableError, match="not open"):
        manager.pool_stats()


class EmptyCell:
    """A cell that is ready at once and runs nothing."""

    async def wait_ready(self) -> None:
        return

    async def kill(self) -> None:
        return

    def alive(self) -> bool:
        return True


class Maker:
    """A backend that makes such cells."""

    async def create_cell(self, limits: Limits) -> Any:
        return EmptyCell()


@pytest.mark.promise("P-25")
@pytest.mark.parametrize("delay", [1_000, 0])
async def test_runs_that_begin_together_go_before_the_refill(
    monkeypatch: pytest.MonkeyPatch, delay: float
) -> None:
    monkeypatch.setattr(pool_module, "_REFILL_DELAY_LIMIT", delay)
    clock, config = Clock(), SUBPROCESS.config(pool=2)
    maker: Any = Maker()
    async with anyio.create_task_group() as tasks:
        pool = Pool(maker, config, tasks, CellEvents("test", []), clock)
        pool.start()
        await until(lambda: pool.stats(0).ready == 2)
        for _ in range(2):
            await pool.take(config.limits)
        if delay:
            await anyio.wait_all_tasks_blocked()
            assert pool.stats(0).made == 2
            clock.now += 1
        # Without a delay it is filled at once, though runs begin without an end.
        await until(lambda: pool.stats(0).ready == 2)
        await pool.aclose()


@pytest.mark.promise("P-25")
async def test_no_pool_is_no_work() -> None:
    async with SandboxManager(SUBPROCESS.config(pool=0)) as manager:
        await manager.run("1")
        stats = manager.pool_stats()

    assert (stats.size, stats.ready, stats.made) == (0, 0, 0)


def ready_cells(manager: SandboxManager) -> list[Any]:
    return list(manager._cells._pool._ready)


async def end_from_outside(cell: Any) -> None:
    """Kill a cell as an operator or the kernel would, and wait until it shows."""
    process = cell._process
    if hasattr(process, "_handle"):
        signal.pidfd_send_signal(process._handle, signal.SIGKILL)
    else:
        engine = process._backend._engine.api
        await anyio.to_thread.run_sync(engine.kill, process._container_id)
    await until(lambda: not cell.alive())


@pytest.mark.promise("E-81", "P-24")
async def test_a_dead_cell_is_never_handed_out(backend: BackendRow) -> None:
    async with SandboxManager(backend.config(pool=2)) as manager:
        await until(lambda: full(manager))
        for cell in ready_cells(manager):
            await end_from_outside(cell)
        result = await manager.run("6 * 7")
        discarded = manager.pool_stats().discarded

    assert (result.value, discarded) == (42, 2)


@pytest.mark.promise("P-24")
async def test_a_dead_cell_is_replaced_before_it_is_asked_for(
    backend: BackendRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_HEALTH_SECONDS", 0.05)
    async with SandboxManager(backend.config(pool=1)) as manager:
        await until(lambda: full(manager))
        [dead] = ready_cells(manager)
        await end_from_outside(dead)
        await until(lambda: manager.pool_stats().discarded == 1)
        await until(lambda: full(manager))
        [alive] = ready_cells(manager)
        stats = manager.pool_stats()

    assert alive is not dead
    assert (stats.made, stats.discarded) == (2, 1)


@pytest.mark.promise("P-24")
async def test_other_limits_do_not_take_a_ready_cell(backend: BackendRow) -> None:
    async with SandboxManager(backend.config(pool=1)) as manager:
        await until(lambda: full(manager))
        [cell] = ready_cells(manager)
        result = await manager.run("1", limits=Limits(memory_mib=128))
        assert result.value == 1
        assert ready_cells(manager) == [cell]


@pytest.mark.promise("P-25")
async def test_closing_drains_the_pool(backend: BackendRow) -> None:
    async with SandboxManager(backend.config(pool=3)) as manager:
        await until(lambda: full(manager))
        cells = ready_cells(manager)

    assert len(cells) == 3
    assert not any(cell.alive() for cell in cells)
    assert all(cell.gone for cell in cells)


@pytest.mark.promise("P-25")
@pytest.mark.parametrize("error", [SandboxUnavailableError("not now"), OSError()])
async def test_a_backend_that_cannot_fill_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(pool_module, "_RETRY_SECONDS", 0.01)
    refusals = 5
    async with SandboxManager(SUBPROCESS.config(pool=0)) as outer:
        backend = outer._open_backend
        create: Callable[[Limits], Awaitable[Any]] = backend.create_cell

        async def refuse_first(limits: Limits) -> Any:
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise error
            return await create(limits)

        monkeypatch.setattr(backend, "create_cell", refuse_first)
        async with anyio.create_task_group() as tasks:
            reported: list[str] = []
            events = CellEvents("test", [lambda event, _: reported.append(event)])
            pool = pool_module.Pool(backend, SUBPROCESS.config(pool=1), tasks, events)
            pool.start()
            await until(lambda: pool.stats(0).ready == 1)
            await pool.aclose()

    assert refusals == 0
    assert pool.stats(0).made == 1
    assert reported == ["unavailable", "available"]


@pytest.mark.promise("JA10", "P-26")
async def test_a_long_wait_for_a_place_is_announced_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("toolcell.sandbox.scheduling.fair_queue._PATIENCE_SECONDS", 0)
    queue = FairQueue(places=1, max_waiting=10)
    entered = await queue.enter("a")
    async with anyio.create_task_group() as tasks:
        for agent in "bcd":
            tasks.start_soon(queue.enter, agent)
        await until(lambda: bool(caplog.messages))
        await anyio.wait_all_tasks_blocked()
        for _ in range(3):
            queue.leave(entered)

    assert caplog.messages == [
        "3 runs and sessions wait for a place: all 1 are taken (max_concurrency)"
    ]


@pytest.mark.promise("JA10")
async def test_a_session_that_waits_says_which_limit_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As the 33rd of a default manager does, after five seconds."""
    assert (SandboxConfig().max_concurrency, vars(fair_queue)["_PATIENCE_SECONDS"]) == (
        32,
        5,
    )
    monkeypatch.setattr(fair_queue, "_PATIENCE_SECONDS", 0)
    config = SandboxConfig(backend="subprocess", max_concurrency=1)
    async with SandboxManager(config) as sandbox, anyio.create_task_group() as tasks:

        async def use_another() -> None:
            async with sandbox.session() as other:
                assert (await other.run("1")).value == 1

        async with sandbox.session():
            tasks.start_soon(use_another)
            await until(lambda: bool(caplog.messages))

    assert caplog.messages == [
        "one run or session waits for a place: all 1 are taken (max_concurrency)"
    ]
