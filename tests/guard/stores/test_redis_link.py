"""How calls reach Redis: together on asyncio, on threads elsewhere, and never late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import anyio
import pytest

from toolcell.core import StoreUnavailableError
from toolcell.guard import ActionGuard, AgentPolicy, RedisStore
from toolcell.guard.stores.base import Charge, Reservation

from ...conftest import run_apart
from ...support.guard.builders import call, facts, in_threads, spend
from ...support.guard.redis_server import RedisServer
from ...support.guard.worker import PATIENCE

pytestmark = pytest.mark.anyio

SHORT = 0.1
HOUR = 3_600_000_000
LIMIT = 1_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path_factory.mktemp("redis"), keeps=False)
    made.start()
    yield made
    made.kill()


@pytest.fixture
async def store(
    server: RedisServer, request: pytest.FixtureRequest
) -> AsyncIterator[RedisStore]:
    made = RedisStore(server.url, prefix=request.node.name[-64:], deadline=PATIENCE)
    yield made
    await made.aclose()


def guard_on(store: RedisStore) -> ActionGuard:
    budgets = [{"unit": "tokens", "limit": LIMIT}]
    return ActionGuard(
        [AgentPolicy(agent_id="a", allow=["*"], budgets=budgets)], store=store
    )


def one(hold_id: str) -> Reservation:
    return Reservation(hold_id, [], [Charge("agent|a|x", 1, LIMIT)], HOUR)


async def levels(store: RedisStore) -> tuple[int, int]:
    [(used, held, _)] = (await store.peek(one("a|"))).levels
    return used, held


async def impatient(patient: RedisStore) -> RedisStore:
    """Return a store with the same counters, and a connection, that waits briefly."""
    made = RedisStore(patient._url, prefix=patient._prefix, deadline=SHORT)
    while True:
        with suppress(StoreUnavailableError):
            await levels(made)
            return made


def reads(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.info("stats")["total_reads_processed"])


def connections(server: RedisServer) -> int:
    """Return how many connections there have ever been."""
    with server.client() as client:
        return int(client.info("stats")["total_connections_received"])


async def test_calls_at_once_share_their_trips(
    server: RedisServer, store: RedisStore
) -> None:
    guard = guard_on(store)
    await spend(guard, call(), facts(tokens=1), tokens=1)
    before = reads(server)
    async with anyio.create_task_group() as tasks:
        for _ in range(200):
            tasks.start_soon(lambda: spend(guard, call(), facts(tokens=1), tokens=1))

    # 400 scripts; a batch has 64, and large ones are read in several pieces.
    assert reads(server) - before < 60
    left = (await guard.decide(call(), facts(tokens=0))).remaining
    assert left == {"a tokens/total": LIMIT - 201}


def test_trio_counts_with_asyncio(server: RedisServer) -> None:
    store = RedisStore(server.url, prefix="trio", deadline=PATIENCE)
    guard = guard_on(store)

    async def spend_all() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(
                    lambda: spend(guard, call(), facts(tokens=1), tokens=1)
                )

    async def left() -> object:
        return (await guard.decide(call(), facts(tokens=0))).remaining

    run_apart(spend_all, backend="trio")
    run_apart(spend_all, backend="asyncio")
    assert run_apart(left, backend="trio") == {"a tokens/total": LIMIT - 40}
    run_apart(store.aclose)


def test_a_loop_that_ends_closes_its_connection(server: RedisServer) -> None:
    store = RedisStore(server.url, prefix="loops", deadline=PATIENCE)

    def connected() -> int:
        with server.client() as client:
            return len(client.client_list())

    run_apart(levels, store)
    before = connected()
    for _ in range(5):
        run_apart(levels, store)
    assert connected() == before
    run_apart(store.aclose)
    assert connected() < before


def test_loops_of_many_threads_begin_and_end_at_once(server: RedisServer) -> None:
    store = RedisStore(server.url, prefix="threads", deadline=PATIENCE)

    async def reserve(number: int) -> None:
        await store.reserve(one(f"a|{number}"))

    for _ in range(5):
        in_threads(64, reserve)
    run_apart(store.aclose)


async def test_scripts_that_the_server_forgot_are_sent_again(
    server: RedisServer, store: RedisStore
) -> None:
    await store.reserve(one("a|1"))
    with server.client() as client:
        client.script_flush()

    assert await store.settle("a|1", [1])
    assert await levels(store) == (1, 0)


async def test_a_loop_that_was_held_up_does_not_refuse(
    server: RedisServer, store: RedisStore
) -> None:
    brief = await impatient(store)
    with server.client() as client:
        known = client.dbsize()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(brief.reserve, one("a|1"))
            while client.dbsize() == known:
                await anyio.lowlevel.checkpoint()
            # The answer is there; nothing of the loop runs until its timers are due.
            time.sleep(SHORT * 3)
    assert await levels(store) == (0, 1)
    await brief.aclose()


async def test_who_waits_behind_a_call_that_is_late_does_not_wait_again(
    server: RedisServer, store: RedisStore
) -> None:
    brief = await impatient(store)

    async def reserve(number: int) -> None:
        with pytest.raises(StoreUnavailableError):
            await brief.reserve(one(f"a|{number}"))

    before = connections(server)
    server.pause()
    try:
        async with anyio.create_task_group() as tasks:
            for number in range(500):
                tasks.start_soon(reserve, number)
    finally:
        server.resume()
    # Eight batches, each with a deadline of its own, would connect seven times anew.
    assert connections(server) - before < 4
    await brief.aclose()


async def test_a_call_that_was_cancelled_in_the_queue_takes_nothing(
    server: RedisServer, store: RedisStore
) -> None:
    guard = guard_on(store)
    await spend(guard, call(), facts(tokens=1), tokens=1)
    server.pause()
    try:
        asked = [
            asyncio.create_task(spend(guard, call(), facts(tokens=3), tokens=3))
            for _ in range(100)
        ]
        while not any(task.get_stack() for task in asked):
            await anyio.lowlevel.checkpoint()
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        for task in asked:
            task.cancel()
        await asyncio.wait(asked)
    finally:
        server.resume()

    # The first answer gives back what the cancelled calls hold that had left.
    await guard.decide(call(), facts(tokens=0))
    left = (await guard.decide(call(), facts(tokens=0))).remaining
    assert left == {"a tokens/total": LIMIT - 1}


def test_a_loop_that_ends_with_calls_under_way_ends_at_once(
    server: RedisServer,
) -> None:
    store = RedisStore(server.url, prefix="ends", deadline=PATIENCE)

    async def leave() -> None:
        await levels(store)
        server.pause()
        tasks = [asyncio.create_task(store.reserve(one(f"a|{n}"))) for n in range(9)]
        await anyio.lowlevel.checkpoint()
        assert not any(task.done() for task in tasks)

    try:
        asyncio.run(asyncio.wait_for(leave(), PATIENCE))
    finally:
        server.resume()
    run_apart(store.aclose)
