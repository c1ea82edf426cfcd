"""Keys of calls: one run each, waiting, doubt, expiry, and death of a process."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import (
    InvalidInputError,
    StoreUnavailableError,
    ToolExecutionError,
    ToolResult,
)
from toolcell.tools import Idempotency, SQLiteIdempotency
from toolcell.tools.spi import MemoryIdempotency
from toolcell.tools.stores import sqlite_idempotency
from toolcell.tools.stores.idempotency import CallBody

from ...support.child import Child
from .conftest import Clock

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise("A-17 GR-09 LT-06 RG-31 RL-23 X-04"),
]
PAY_1, PAY_2 = (CallBody("pay", {"amount": amount}) for amount in (1, 2))
DONE = ToolResult(call_id="1", name="pay", content={"paid": "0.10"})


@pytest.fixture(params=["memory", "sqlite"])
def keys(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock
) -> Iterator[Idempotency]:
    if request.param == "memory":
        yield MemoryIdempotency(ttl_seconds=60, clock=clock)
    else:
        store = SQLiteIdempotency(tmp_path / "keys.db", ttl_seconds=60, clock=clock)
        yield store
        store.close()


async def test_a_finished_key_hands_out_its_result(keys: Idempotency) -> None:
    assert await keys.claim("k", PAY_1, repeatable=False) is None
    keys.finish("k", DONE)

    for _ in range(2):
        assert await keys.claim("k", PAY_1, repeatable=False) == DONE
    assert await keys.claim("other", PAY_1, repeatable=False) is None
    keys.forget("other")


async def test_another_body_under_a_key_is_an_error(keys: Idempotency) -> None:
    await keys.claim("k", PAY_1, repeatable=False)
    with pytest.raises(InvalidInputError, match="another call"):
        await keys.claim("k", PAY_2, repeatable=False)
    keys.finish("k", DONE)
    with pytest.raises(InvalidInputError, match="another call"):
        await keys.claim("k", PAY_2, repeatable=False)

    assert await keys.claim("k", PAY_1, repeatable=False) == DONE


async def test_a_failure_is_forgotten(keys: Idempotency) -> None:
    await keys.claim("k", PAY_1, repeatable=False)
    keys.forget("k")

    assert await keys.claim("k", PAY_1, repeatable=False) is None
    keys.forget("k")


async def test_doubt_is_told_and_only_harmless_work_goes_on(keys: Idempotency) -> None:
    for key in ("k", "harmless"):
        await keys.claim(key, PAY_1, repeatable=False)
        keys.doubt(key)

    for _ in range(2):
        with pytest.raises(ToolExecutionError, match="not known") as raised:
            await keys.claim("k", PAY_1, repeatable=False)
    assert raised.value.details == {"outcome": "unknown"}
    assert await keys.claim("harmless", PAY_1, repeatable=True) is None
    keys.finish("harmless", DONE)
    assert await keys.claim("harmless", PAY_1, repeatable=True) == DONE


async def test_single_flight_of_a_hundred(keys: Idempotency) -> None:
    """Of a hundred at once one runs, and the others get its result."""
    runs, results = 0, []
    started, go_on = anyio.Event(), anyio.Event()

    async def call() -> None:
        nonlocal runs
        result = await keys.claim("k", PAY_1, repeatable=False)
        if result is None:
            runs += 1
            started.set()
            await go_on.wait()
            keys.finish("k", DONE)
            result = DONE
        results.append(result)

    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(call)
        await started.wait()
        await anyio.wait_all_tasks_blocked()
        go_on.set()

    assert runs == 1
    assert results == [DONE] * 100


async def test_who_waits_for_a_failure_tries_itself(keys: Idempotency) -> None:
    order = []

    async def call(name: str, *, fails: bool) -> None:
        if await keys.claim("k", PAY_1, repeatable=False) is None:
            order.append(name)
            await anyio.wait_all_tasks_blocked()
            if fails:
                keys.forget("k")
            else:
                keys.finish("k", DONE)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: call("first", fails=True))
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(lambda: call("second", fails=False))
        tasks.start_soon(lambda: call("third", fails=False))

    assert sorted(order)[:1] == ["first"]
    assert len(order) == 2


async def test_a_cancelled_waiter_leaves_the_key_alone(keys: Idempotency) -> None:
    await keys.claim("k", PAY_1, repeatable=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: keys.claim("k", PAY_1, repeatable=False))
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    keys.finish("k", DONE)

    assert await keys.claim("k", PAY_1, repeatable=False) == DONE


async def test_results_expire(keys: Idempotency, clock: Clock) -> None:
    await keys.claim("k", PAY_1, repeatable=False)
    clock.now += 59
    keys.finish("k", DONE)
    clock.now += 59
    assert await keys.claim("k", PAY_1, repeatable=False) == DONE
    clock.now += 1

    assert await keys.claim("k", PAY_2, repeatable=False) is None
    keys.forget("k")


@pytest.mark.promise("R43")
async def test_a_clock_that_is_set_ends_no_key_of_a_file(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened() -> contextlib.closing[SQLiteIdempotency]:
        return contextlib.closing(SQLiteIdempotency(path, ttl_seconds=60, clock=clock))

    with opened() as keys:
        await keys.claim("pay-1", PAY_1, repeatable=False)
        keys.finish("pay-1", DONE)
    day = time.time() + 86_400
    monkeypatch.setattr(time, "time", lambda: day)
    with opened() as keys:
        assert await keys.claim("other", PAY_1, repeatable=False) is None
        keys.forget("other")
        clock.now += 59
        assert await keys.claim("pay-1", PAY_1, repeatable=False) == DONE
    # Started anew, with an uptime that is less, and with one that is more.
    for boot, now in (("b", 5.0), ("c", 1e9)):
        monkeypatch.setattr(sqlite_idempotency, "boot_id", lambda boot=boot: boot)
        clock.now = now
        with opened() as keys:
            assert await keys.claim("pay-1", PAY_1, repeatable=False) == DONE
    clock.now += 2
    with opened() as keys:
        assert await keys.claim("pay-1", PAY_1, repeatable=False) is None


def python(script: str, *arguments: Any) -> subprocess.Popen[str]:
    return Child(
        [sys.executable, "-I", "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )


HOLDER = """
import sys, anyio
from toolcell.core import ToolResult
from toolcell.tools import SQLiteIdempotency
from toolcell.tools.stores import sqlite_idempotency
from toolcell.tools.stores.idempotency import CallBody
PAY_1 = CallBody("pay", {"amount": 1})
async def main():
    keys = SQLiteIdempotency(sys.argv[1], busy_seconds=60)
    await keys.claim("done", PAY_1, repeatable=False)
    keys.finish("done", ToolResult(call_id="1", name="pay", content="paid"))
    await keys.claim("running", PAY_1, repeatable=False)
    print("ready", flush=True)
    sys.stdin.readline()
    keys.finish("running", ToolResult(call_id="1", name="pay", content="late"))
    keys.close()
anyio.run(main)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture
async def mine(path: Path) -> AsyncIterator[SQLiteIdempotency]:
    keys = SQLiteIdempotency(path, busy_seconds=60)
    yield keys
    keys.close()


async def test_keys_survive_a_kill_and_a_half_done_one_is_in_doubt(path: Path) -> None:
    """RG-31, A-17, LT-06: durable across kill -9, honest about what it broke off."""
    with python(HOLDER, path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        holder.kill()
    keys = SQLiteIdempotency(path)

    result = await keys.claim("done", PAY_1, repeatable=False)
    assert result is not None
    assert result.content == "paid"
    with pytest.raises(ToolExecutionError, match="not known"):
        await keys.claim("running", PAY_1, repeatable=False)
    assert await keys.claim("running", PAY_1, repeatable=True) is None
    keys.forget("running")
    keys.close()
    # What was swept when the file was opened, or given up by its owner.
    assert list(path.parent.glob("*-owner-*")) == []


async def test_a_key_in_doubt_that_nobody_asks_for_ends_with_its_time(
    path: Path, clock: Clock
) -> None:
    with python(HOLDER, path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        holder.kill()
    with contextlib.closing(SQLiteIdempotency(path, ttl_seconds=60, clock=clock)):
        pass
    clock.now += 61
    with contextlib.closing(SQLiteIdempotency(path, clock=clock)) as keys:
        await keys.claim("another", PAY_1, repeatable=False)
        with keys._file.transaction() as database:
            left = database.execute("SELECT state FROM idempotency_keys").fetchall()

    # The one that was done by the holder's clock is not over yet.
    assert sorted(left) == [("done",), ("running",)]


async def test_a_key_of_a_living_process_is_waited_for(
    path: Path, mine: SQLiteIdempotency
) -> None:
    with python(HOLDER, path) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "ready\n"
        results = []

        async def wait() -> None:
            results.append(await mine.claim("running", PAY_1, repeatable=False))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            with pytest.raises(InvalidInputError):
                await mine.claim("running", PAY_2, repeatable=False)
            assert results == []
            holder.stdin.write("\n")
            holder.stdin.flush()

    assert [result and result.content for result in results] == ["late"]


RACER = """
import sys, anyio
from toolcell.core import ToolResult
from toolcell.tools import SQLiteIdempotency
from toolcell.tools.stores import sqlite_idempotency
from toolcell.tools.stores.idempotency import CallBody
PAY_1 = CallBody("pay", {"amount": 1})
async def main():
    keys = SQLiteIdempotency(sys.argv[1], busy_seconds=60)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(40):
        key = str(number)
        if await keys.claim(key, CallBody("pay", {}), repeatable=False) is None:
            print(number, flush=True)
            keys.finish(key, ToolResult(call_id="1", name="pay", content=number))
    keys.close()
anyio.run(main)
"""


def test_processes_that_race_run_each_key_once(path: Path) -> None:
    racers = [python(RACER, path) for _ in range(4)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    outputs = []
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    for racer in racers:
        outputs += racer.communicate(timeout=200)[0].split()

    assert sorted(map(int, outputs)) == list(range(40))


async def test_a_result_that_cannot_be_kept_is_in_doubt(path: Path) -> None:
    keys = SQLiteIdempotency(path, busy_seconds=0.01)
    other = SQLiteIdempotency(path)
    await keys.claim("k", PAY_1, repeatable=False)
    with other._file.transaction(), pytest.raises(StoreUnavailableError):
        keys.finish("k", DONE)

    with pytest.raises(ToolExecutionError, match="not known"):
        await keys.claim("k", PAY_1, repeatable=False)
    keys.close()
    other.close()


async def test_a_result_is_nobody_elses_to_change(keys: Idempotency) -> None:
    given = ToolResult(call_id="1", name="pay", content={"list": [1]}, usage={"n": 1})
    await keys.claim("k", PAY_1, repeatable=False)
    keys.finish("k", given)
    for result in (given, await keys.claim("k", PAY_1, repeatable=False)):
        content: Any = result and result.content
        content["list"].append(2)

    again = await keys.claim("k", PAY_1, repeatable=False)
    assert again is not None
    assert (again.content, again.usage) == ({"list": [1]}, {})


async def test_a_run_keeps_its_key_however_long_it_takes(
    path: Path, clock: Clock
) -> None:
    """A short time to live counts from the end of a run, not from its start."""
    one = SQLiteIdempotency(path, ttl_seconds=1, clock=clock)
    other = SQLiteIdempotency(path, ttl_seconds=1, clock=clock)
    await one.claim("k", PAY_1, repeatable=False)
    clock.now += 1000
    with anyio.move_on_after(0.05) as waiting:
        await other.claim("k", PAY_1, repeatable=False)
    assert waiting.cancelled_caught
    one.finish("k", DONE)

    assert await other.claim("k", PAY_1, repeatable=False) == DONE
    one.close()
    other.close()
