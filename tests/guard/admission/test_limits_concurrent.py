"""Limits under threads, tasks, processes and kills: never one too many, nor too few.

Rows RG-37 and RG-23.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import GuardDeniedError
from toolcell.guard import ActionGuard, AgentPolicy, SQLiteStore, Store
from toolcell.guard.stores.base import Charge, Reservation

from ...conftest import run_apart
from ...support.child import Child
from ...support.guard.builders import FREE, FakeClock, call, facts, in_threads
from ...support.guard.redis_server import RedisServer
from ...support.guard.store_table import StoreMaker, make_store
from ...support.guard.worker import PATIENCE

__all__ = ["make_store"]
pytestmark = pytest.mark.anyio

WORKER = """
import sys
import anyio
from toolcell.core import GuardDeniedError, ToolCall
from toolcell.guard import ActionGuard, AgentPolicy, CallFacts, RedisStore, SQLiteStore

kind, where, mode, tries = sys.argv[1:]
if kind == "sqlite":
    store = SQLiteStore(where, deadline=60)
else:
    store = RedisStore(where, deadline=60)
policy = AgentPolicy(
    agent_id="a", allow=["*"], rate_limits=["5000/day"], max_concurrency=500,
    budgets=[{"unit": "tokens", "limit": 300}],
)
guard = ActionGuard([policy], store=store)
call = ToolCall(id="1", name="add", agent_id="a")
known = CallFacts(cost={"tokens": 3})
print("ready", flush=True)
sys.stdin.readline()

async def spend():
    try:
        async with guard.admit(call, known) as permit:
            print("taken", flush=True)
            if mode == "hold":
                await anyio.sleep_forever()
            await permit.settle({"tokens": 3})
        print("settled", flush=True)
    except GuardDeniedError as error:
        print(error.details["reason"], flush=True)

async def main():
    for _ in range(int(tries)):
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(spend)
    await store.aclose()

anyio.run(main)
"""


@contextmanager
def worker(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    with Child(
        [sys.executable, "-c", WORKER, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def lines_of(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.read().split()


def guard_on(store: Store, **fields: Any) -> ActionGuard:
    policy = AgentPolicy(agent_id="a", allow=["*"], **fields)
    return ActionGuard([policy], store=store, clock=FakeClock())


async def try_once(guard: ActionGuard, won: list[str], known: Any = FREE) -> None:
    try:
        async with guard.admit(call(), known) as permit:
            await permit.settle()
        won.append("admitted")
    except GuardDeniedError as error:
        won.append(error.details["reason"])


def test_a_store_serves_both_kinds_of_loop(make_store: StoreMaker) -> None:
    store = make_store(FakeClock())
    guard = guard_on(store, budgets=[{"unit": "calls", "limit": 3}])
    won: list[str] = []
    for backend in ("asyncio", "trio", "asyncio", "trio"):
        run_apart(try_once, guard, won, backend=backend)
    run_apart(store.aclose)

    assert won == ["admitted"] * 3 + ["budget_exceeded"]


@pytest.mark.promise("E-113")
def test_many_threads_spend_one_remaining_unit(make_store: StoreMaker) -> None:
    guard = guard_on(make_store(FakeClock()), budgets=[{"unit": "tokens", "limit": 7}])
    won: list[str] = []
    in_threads(64, lambda _: try_once(guard, won, facts(tokens=7)))
    assert sorted(won) == ["admitted"] + ["budget_exceeded"] * 63
    told = run_apart(guard.decide, call(), FREE)
    assert told.remaining == {"a tokens/total": 0}


def test_threads_are_admitted_to_the_last_one(make_store: StoreMaker) -> None:
    guard = guard_on(
        make_store(FakeClock()),
        rate_limits=["10000/day"],
        budgets=[{"unit": "tokens", "limit": 600}],
    )
    won: list[str] = []

    async def try_often(_: int) -> None:
        for _ in range(40):
            await try_once(guard, won, facts(tokens=3))

    in_threads(8, try_often)
    assert (len(won), won.count("admitted")) == (320, 200)
    told = run_apart(guard.decide, call(), FREE)
    assert told.remaining == {"a 10000 calls/86400 s": 9800, "a tokens/total": 0}


@pytest.mark.promise("RG-37", "RG-51")
@pytest.mark.parametrize(
    "fields",
    [
        {"rate_limits": ["10/minute"]},
        {"rate_limits": [{"limit": "10/day", "algorithm": "bucket"}]},
        {"budgets": [{"unit": "calls", "limit": 10}]},
        {"budgets": [{"unit": "tokens", "limit": 30, "per": "agent_tool"}]},
    ],
)
async def test_tasks_are_admitted_to_the_last_one(
    make_store: StoreMaker, fields: dict[str, Any]
) -> None:
    store = make_store(FakeClock())
    guard, won = guard_on(store, **fields), list[str]()
    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(try_once, guard, won, facts(tokens=3))
    await store.aclose()

    assert (len(won), won.count("admitted")) == (100, 10)


async def test_calls_at_once_never_pass_the_cap(make_store: StoreMaker) -> None:
    store = make_store(FakeClock())
    guard = guard_on(store, max_concurrency=5)
    inside, most, refused = 0, 0, 0

    async def work() -> None:
        nonlocal inside, most, refused
        try:
            async with guard.admit(call(), FREE):
                inside += 1
                most = max(most, inside)
                await anyio.lowlevel.checkpoint()
                inside -= 1
        except GuardDeniedError:
            refused += 1

    async with anyio.create_task_group() as tasks:
        for _ in range(60):
            tasks.start_soon(work)
    await store.aclose()
    assert most <= 5
    assert refused < 60


@pytest.fixture(params=["sqlite", "redis"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A store that processes share: its kind, and where it is."""
    if request.param == "sqlite":
        yield "sqlite", str(tmp_path / "state.db")
        return
    server = RedisServer(tmp_path)
    server.start()
    yield "redis", server.url
    server.kill()


@pytest.mark.promise("E-113")
def test_processes_are_admitted_to_the_last_one(shared: tuple[str, str]) -> None:
    with (
        worker(*shared, "settle", 10) as one,
        worker(*shared, "settle", 10) as two,
        worker(*shared, "settle", 10) as three,
        worker(*shared, "settle", 10) as four,
    ):
        workers = [one, two, three, four]
        for process in workers:
            go(process)
        said = [line for process in workers for line in lines_of(process)]

    assert said.count("settled") == said.count("taken") == 100
    assert said.count("budget_exceeded") == 60
    assert len(said) == 260


async def used_in(path: Path) -> int:
    """Return the tokens that were charged, once dead processes' holds have ended."""
    store = SQLiteStore(path, deadline=PATIENCE)
    # The key that the workers' guard uses, asked for more than is left.
    charge = Charge("agent|a|tokens/total|agent|*", 301, 300)
    outcome = await store.reserve(Reservation("probe", (), [charge], 1))
    await store.aclose()
    [(used, held, _)] = outcome.levels
    assert held == 0
    return used


@pytest.mark.promise("E-114")
async def test_a_killed_process_gives_up_what_it_held(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with worker("sqlite", path, "hold", 1) as process:
        assert process.stdout is not None
        go(process)
        for _ in range(4):
            assert process.stdout.readline() == "taken\n"
        process.kill()
        process.wait()

    # The maximum of each open call, once.
    assert await used_in(path) == 12
    assert await used_in(path) == 12
    assert not [each for each in tmp_path.iterdir() if "-owner-" in each.name]


@pytest.mark.promise("E-114")
@pytest.mark.parametrize("lines", [1, 2, 5, 9, 16, 30])
async def test_kills_at_any_moment_charge_no_call_twice_or_never(
    tmp_path: Path, lines: int
) -> None:
    path = tmp_path / "state.db"
    with worker("sqlite", path, "settle", 1000) as process:
        assert process.stdout is not None
        go(process)
        said = [process.stdout.readline().strip() for _ in range(lines)]
        process.kill()
        process.wait()
        said += process.stdout.read().split()

    taken = said.count("taken")
    # At most four calls were between their admission and the word of it.
    assert 3 * taken <= await used_in(path) <= 3 * (taken + 4)


async def test_a_living_process_keeps_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = SQLiteStore(path, deadline=PATIENCE)
    guard = guard_on(store, max_concurrency=1)

    async with guard.admit(call(), FREE):
        other = SQLiteStore(path, deadline=PATIENCE)
        won: list[str] = []
        await try_once(guard_on(other, max_concurrency=1), won)
        await other.aclose()
        assert won == ["concurrency"]
    await store.aclose()


def test_a_forked_child_counts_in_the_same_file(tmp_path: Path) -> None:
    script = """
import os, sys, anyio
from toolcell.core import ToolCall
from toolcell.guard import ActionGuard, AgentPolicy, CallFacts, SQLiteStore
store = SQLiteStore(sys.argv[1], deadline=60)
policy = AgentPolicy(agent_id="a", allow=["*"], budgets=[{"unit": "calls", "limit": 4}])
guard = ActionGuard([policy], store=store)
call, known = ToolCall(id="1", name="x", agent_id="a"), CallFacts(cost={})
async def spend():
    async with guard.admit(call, known) as permit:
        await permit.settle()
    return permit.decision.remaining
anyio.run(spend)
for _ in range(2):
    child = os.fork()
    if child == 0:
        anyio.run(spend)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print(anyio.run(spend))
anyio.run(store.aclose)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "state.db")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "{'a calls/total': 0}\n", done.stderr


async def test_the_file_is_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = SQLiteStore(path)
    await functools.partial(try_once, guard_on(store, max_concurrency=1))([])

    modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}
    assert len(modes) == 4
    await store.aclose()
    assert [each.name for each in tmp_path.iterdir()] == ["state.db"]
