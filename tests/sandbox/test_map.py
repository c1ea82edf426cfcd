"""Batches: one result for each program, in a window, and nothing left when it ends."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from toolcell.core import InvalidInputError, SandboxUnavailableError
from toolcell.sandbox import HostCalls, Job, JobResult, Limits, SandboxManager
from toolcell.sandbox.spi import BatchResults

from ..conftest import SUBPROCESS, BackendRow, run_apart
from ..support.polling import until

pytestmark = pytest.mark.anyio


class Door:
    """Programs that call `tools.wait(name)` wait here until their name is opened."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self._opened: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)
        self.calls = HostCalls(names=("wait",), handler=self._answer)

    async def _answer(
        self, _: str, arguments: list[Any], __: dict[str, Any]
    ) -> dict[str, Any]:
        self.waiting.append(arguments[0])
        await self._opened[arguments[0]].wait()
        return {"value": arguments[0]}

    def open(self, *names: str) -> None:
        for name in names:
            self._opened[name].set()

    def job(self, name: str, **options: Any) -> Job:
        return Job(f"tools.wait({name!r})", id=name, calls=self.calls, **options)


async def test_each_program_has_one_result_in_order(sandbox: SandboxManager) -> None:
    programs: list[Any] = [
        "6 * 7",
        ("x + 1", {"x": 1}),
        Job("open('a').read()", id="file", files={"a": "text"}),
        Job("echo hi; exit 3", id=4, language="bash"),
        "1 / 0",
        Job("while True: pass", limits=Limits(wall_seconds=0.5)),
    ]
    async with sandbox.map(programs) as results:
        found = [result async for result in results]

    assert [each.index for each in found] == [0, 1, 2, 3, 4, 5]
    assert [each.id for each in found] == [None, None, "file", 4, None, None]
    statuses = [each.status for each in found]
    assert statuses == ["ok", "ok", "ok", "exit", "error", "timeout"]
    ended = [each.result for each in found]
    assert all(ended) and not any(each.error for each in found)
    assert [each.value for each in ended[:3] if each] == [42, 2, "text"]


async def test_what_cannot_be_run_is_a_result_and_ends_nothing() -> None:
    programs: list[Any] = [
        Job("1", id="a", language="cobol"),  # type: ignore[arg-type]
        7,
        ("1", {"not a name": 1}),
        ("1", 2),
        Job("1", files={"../up": "x"}),
        Job("1", limits=Limits(wall_seconds=9)),
        Job("1", packages=5),  # type: ignore[arg-type]
        "6 * 7",
    ]
    async with SandboxManager(SUBPROCESS.config()) as sandbox:
        narrow = Limits(wall_seconds=5)
        found = [each async for each in sandbox.map(programs, limits=narrow)]

    assert [each.index for each in found] == list(range(8))
    assert [each.status for each in found] == [*["not_run"] * 7, "ok"]
    kinds = [each.error.kind for each in found[:7] if each.error]
    assert kinds == [*["invalid_input"] * 6, "sandbox"]
    assert found[0].id == "a"


async def test_completion_order_is_that_of_the_ends() -> None:
    door = Door()
    jobs = [door.job("slow"), door.job("quick")]
    async with SandboxManager(SUBPROCESS.config()) as sandbox:
        async with sandbox.map(jobs, concurrency=2, ordered=False) as results:
            door.open("quick")
            first = await anext(results)
            door.open("slow")
            rest = [result.id async for result in results]

    assert (first.id, first.index, rest) == ("quick", 1, ["slow"])


async def test_order_is_kept_where_a_later_program_ends_first() -> None:
    door = Door()
    seen: list[tuple[int, int]] = []

    def note(ended: int, running: int) -> None:
        seen.append((ended, running))
        door.open("slow")

    jobs = [door.job("slow"), door.job("quick")]
    door.open("quick")
    async with SandboxManager(SUBPROCESS.config()) as sandbox:
        results = sandbox.map(jobs, concurrency=2, on_progress=note)
        found = [result.id async for result in results]

    assert found == ["slow", "quick"]
    assert seen == [(1, 1), (2, 0)]


async def test_the_source_is_read_no_further_than_the_window() -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "pass"

    async with SandboxManager(SUBPROCESS.config()) as sandbox:
        async with sandbox.map(endless(), concurrency=2) as results:
            await anext(results)
            await until(lambda: read == 9 and not sandbox.active_cells)
            await anyio.wait_all_tasks_blocked()
            assert read == 9
            await anext(results)
            await until(lambda: read == 10)


@pytest.mark.parametrize(("concurrency", "cells"), [(3, 32), (50, 3)])
async def test_no_more_run_at_once_than_were_asked_for(
    concurrency: int, cells: int
) -> None:
    door = Door()
    names = [str(number) for number in range(6)]

    async def read(results: BatchResults) -> None:
        assert [result.id async for result in results] == names

    async with SandboxManager(SUBPROCESS.config(max_concurrency=cells)) as sandbox:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                read, sandbox.map(map(door.job, names), concurrency=concurrency)
            )
            for ended, name in enumerate(names):
                expected = min(6, ended + 3)
                await until(partial(_arrived, door, expected))
                assert len(door.waiting) == expected
                door.open(name)


def _arrived(door: Door, count: int) -> bool:
    return len(door.waiting) >= count


async def test_an_async_source_with_a_scope_of_its_own_is_read_by_one_task() -> None:
    tasks = set()

    async def source() -> AsyncIterator[str]:
        with anyio.CancelScope():
            for _ in range(6):
                tasks.add(anyio.get_current_task().id)
                await anyio.lowlevel.checkpoint()
                yield "pass"

    async with SandboxManager(SUBPROCESS.config()) as sandbox:
        found = [each.status async for each in sandbox.map(source(), concurrency=3)]

    assert (found, len(tasks)) == (["ok"] * 6, 1)


@pytest.mark.parametrize("leave", ["break", "error", "cancel", "aclose"])
async def test_nothing_runs_on_when_control_returns(
    backend: BackendRow, leave: str
) -> None:
    door = Door()
    jobs = [door.job("first"), door.job("second"), door.job("third")]
    async with SandboxManager(backend.config()) as sandbox:
        cells: list[Any] = []

        async def read() -> None:
            async with sandbox.map(jobs, concurrency=3) as results:
                async for _ in results:
                    await until(lambda: len(door.waiting) == 3)
                    cells.extend(sandbox._active)
                    assert len(cells) == 2
                    if leave == "break":
                        break
                    if leave == "error":
                        raise KeyError("mine")
                    if leave == "aclose":
                        await results.aclose()
                    scope.cancel()

        door.open("first")
        with anyio.CancelScope() as scope:
            if leave == "error":
                with pytest.raises(KeyError, match="mine"):
                    await read()
            else:
                await read()
        assert sandbox.active_cells == 0
        assert all(cell.gone for cell in cells) and len(cells) == 2


async def test_a_bare_loop_that_breaks_ends_the_batch_soon() -> None:
    door = Door()
    door.open("first")
    jobs = [door.job("first"), door.job("second")]
    async with SandboxManager(SUBPROCESS.config()) as sandbox:
        async for _ in sandbox.map(jobs, concurrency=2):
            await until(lambda: len(door.waiting) == 2)
            break
        await until(lambda: sandbox.active_cells == 0)


async def test_what_the_source_raises_comes_after_the_results_before_it() -> None:
    def source() -> Iterator[str]:
        yield "1"
        yield "2"
        raise KeyError("mine")

    found = []
    async with SandboxManager(SUBPROCESS.config()) as sandbox:
        with pytest.raises(KeyError, match="mine"):
            async for result in sandbox.map(source()):
                found.append(result.status)

    assert found == ["ok", "ok"]


async def test_what_a_listener_raises_ends_the_batch() -> None:
    def refuse(_: int, __: int) -> None:
        raise KeyError("mine")

    async with SandboxManager(SUBPROCESS.config()) as sandbox:
        with pytest.raises(KeyError, match="mine"):
            await anext(sandbox.map(itertools.repeat("pass"), on_progress=refuse))
        assert sandbox.active_cells == 0


async def test_a_manager_that_closes_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcell.sandbox.scheduling.cell_supply._STOP_SECONDS", 60)
    door = Door()
    door.open("first")
    jobs = [door.job("first"), door.job("second")]
    found: list[JobResult] = []

    async def read(results: BatchResults) -> None:
        with pytest.raises(SandboxUnavailableError, match="closed during a batch"):
            async for result in results:
                found.append(result)

    async with anyio.create_task_group() as tasks:
        async with SandboxManager(SUBPROCESS.config(max_concurrency=1)) as sandbox:
            tasks.start_soon(read, sandbox.map(jobs))
            await until(lambda: len(door.waiting) == 2)

    assert [each.id for each in found] == ["first"]
    with pytest.raises(SandboxUnavailableError, match="not open"):
        await anext(sandbox.map(["1"]))


async def test_a_full_queue_makes_a_batch_wait() -> None:
    door = Door()
    config = SUBPROCESS.config(max_concurrency=1, max_queue=0)
    async with SandboxManager(config) as sandbox, anyio.create_task_group() as tasks:

        async def occupy() -> None:
            await sandbox.run("tools.wait('mine')", calls=door.calls)

        tasks.start_soon(occupy)
        await until(lambda: door.waiting == ["mine"])

        async def let_go() -> None:
            await anyio.wait_all_tasks_blocked()
            door.open("mine")

        tasks.start_soon(let_go)
        found = [each.status async for each in sandbox.map(["pass"])]

    assert found == ["ok"]


async def test_no_programs_are_no_results() -> None:
    async with SandboxManager(SUBPROCESS.config()) as sandbox:
        assert [each async for each in sandbox.map([])] == []


@pytest.mark.parametrize("programs", ["print(1)", {"a": "1"}, 5, b"1"])
async def test_what_is_no_series_of_programs_is_refused(programs: Any) -> None:
    async with SandboxManager(SUBPROCESS.config()) as sandbox:
        with pytest.raises(InvalidInputError, match="a series of programs"):
            sandbox.map(programs)


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, "2"])
async def test_a_concurrency_that_is_none_is_refused(concurrency: Any) -> None:
    async with SandboxManager(SUBPROCESS.config()) as sandbox:
        with pytest.raises(InvalidInputError, match="concurrency"):
            sandbox.map(["1"], concurrency=concurrency)


def test_trio_runs_batches_too() -> None:
    async def work() -> tuple[Counter[str], int]:
        async with SandboxManager(SUBPROCESS.config()) as sandbox:
            found: Counter[str] = Counter()
            async with sandbox.map(["1", "1/0", "2", "3"], concurrency=2) as results:
                async for result in results:
                    found[result.status] += 1
            async with sandbox.map(itertools.repeat("pass"), concurrency=2) as results:
                await anext(results)
            return found, sandbox.active_cells

    assert run_apart(work, backend="trio") == (Counter(ok=3, error=1), 0)
