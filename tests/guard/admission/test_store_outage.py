"""What the guard does while its store is away, and after it came back."""

from __future__ import annotations

import logging
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import ConfigError, GuardError, PolicyError, StoreUnavailableError
from toolcell.guard import ActionGuard, AgentPolicy, AuditLog, RedisStore, SQLiteStore
from toolcell.guard.stores.base import Charge, RateHit, Reservation, ReservationOutcome

from ...conftest import run_apart
from ...support.guard.builders import FREE, call, facts, in_threads, spend
from ...support.guard.redis_server import RedisServer
from ...support.guard.worker import PATIENCE

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path)
    made.start()
    yield made
    made.kill()


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisStore]:
    made = RedisStore(server.url, deadline=PATIENCE)
    yield made
    await made.aclose()


def guard_on(store: Any, mode: str = "closed", **options: Any) -> ActionGuard:
    budgets = [{"unit": "tokens", "limit": 100}]
    policy = AgentPolicy(agent_id="a", allow=["*"], deny=["rm"], budgets=budgets)
    return ActionGuard([policy], store=store, on_store_failure=mode, **options)


async def outcome_of(guard: ActionGuard, name: str = "add") -> str:
    try:
        decision = await spend(guard, call(name), facts(tokens=10), tokens=10)
    except GuardError as error:
        return f"{error.kind} {error.details['reason']}"
    return decision.degraded or "allowed"


async def tokens_left(guard: ActionGuard) -> Any:
    return (await guard.decide(call(), FREE)).remaining["a tokens/total"]


@pytest.mark.parametrize(
    "mode", ["", "open ", "local", "local(0)", "local(-1)", "ajar"]
)
def test_an_unknown_failure_mode_is_refused(mode: str) -> None:
    with pytest.raises(PolicyError, match="not a failure mode"):
        ActionGuard(on_store_failure=mode)


async def test_closed_refuses_and_says_that_it_was_the_store(
    server: RedisServer, store: RedisStore, caplog: pytest.LogCaptureFixture
) -> None:
    guard = guard_on(store)
    server.kill()

    with caplog.at_level(logging.WARNING):
        assert await outcome_of(guard) == "guard.store_unavailable store_unavailable"
        assert await outcome_of(guard, "rm") == "guard.denied denied"
        with pytest.raises(StoreUnavailableError):
            await guard.reset("a", by="pat")
    assert (await guard.decide(call(), FREE)).reason == "store_unavailable"
    assert caplog.text.count("store unavailable, mode closed") == 1
    server.start()
    assert await outcome_of(guard) == "allowed"
    assert "available again" in caplog.text


async def test_open_admits_what_rules_allow(
    server: RedisServer, store: RedisStore
) -> None:
    guard = guard_on(store, "open")
    server.kill()

    assert [await outcome_of(guard) for _ in range(12)] == ["open"] * 12
    assert await outcome_of(guard, "rm") == "guard.denied denied"
    server.start()
    assert await outcome_of(guard) == "allowed"
    assert await tokens_left(guard) == 90


async def test_local_admits_a_few_under_the_same_limits(
    server: RedisServer, store: RedisStore
) -> None:
    few, many = guard_on(store, "local(3)"), guard_on(store, "local(50)")
    server.kill()

    refused = "guard.store_unavailable store_unavailable"
    assert [await outcome_of(few) for _ in range(5)] == ["local"] * 3 + [refused] * 2
    assert [await outcome_of(many) for _ in range(11)] == [
        *["local"] * 10,
        "guard.denied budget_exceeded",
    ]
    server.start()
    assert await outcome_of(few) == "allowed"
    server.kill()
    assert await outcome_of(few) == "local"


class AwayStore:
    """A store that never answers."""

    async def reserve(self, request: Reservation) -> ReservationOutcome:
        raise StoreUnavailableError("away")

    peek = settle = reset = aclose = reserve


@pytest.mark.promise("E-113")
def test_all_threads_share_what_local_admits() -> None:
    for _ in range(80):
        guard, said = guard_on(AwayStore(), "local(1)"), list[str]()

        async def once(
            _: int, guard: ActionGuard = guard, said: list[str] = said
        ) -> None:
            said.append(await outcome_of(guard))

        in_threads(8, once)
        assert said.count("local") == 1


async def test_each_call_without_the_store_is_recorded(
    server: RedisServer, store: RedisStore, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as audit:
        guard = guard_on(store, "open", audit=audit)
        server.kill()
        await outcome_of(guard)
        await outcome_of(guard)
    text = path.read_text()
    assert text.count('"degraded":"open"') == 2
    assert text.count('"event":"store_unavailable"') == 1


async def test_what_could_not_be_settled_is_settled_later(
    server: RedisServer, store: RedisStore
) -> None:
    guard = guard_on(store)
    async with guard.admit(call(), facts(tokens=50)) as permit:
        server.kill()
        assert await permit.settle({"tokens": 1})
    server.start()

    assert await outcome_of(guard) == "allowed"
    assert await tokens_left(guard) == 89


class Overtaken(deque[Any]):
    """Lets another thread find the store just before something is put off."""

    def __init__(self, other: Callable[[], object]) -> None:
        super().__init__()
        self._other = other

    def append(self, late: Any) -> None:
        self._other()
        super().append(late)


class Hiccup(SQLiteStore):
    """Is away when the first call is settled."""

    answers = False

    async def settle(self, hold_id: str, actual: Sequence[int] | None) -> bool:
        if not self.answers:
            self.answers = True
            raise StoreUnavailableError("away for a moment")
        return await super().settle(hold_id, actual)


async def test_what_is_put_off_while_others_find_the_store_is_settled_too(
    tmp_path: Path,
) -> None:
    store = Hiccup(tmp_path / "guard.db")
    guard = guard_on(store)
    look = partial(guard.decide, call(), FREE)
    guard._ledger._pending = Overtaken(lambda: run_apart(look))

    async with guard.admit(call(), facts(tokens=50)) as permit:
        await permit.settle({"tokens": 1})

    assert await outcome_of(guard) == "allowed"
    assert await tokens_left(guard) == 89
    await store.aclose()


async def test_a_reservation_that_comes_after_it_was_given_back_is_not_taken(
    store: RedisStore,
) -> None:
    # As a network may deliver them, when nobody waits for the first any more.
    late = Reservation("late", [RateHit("rate", 1, 1)], [Charge("spent", 5, 10)], 10**9)
    assert not await store.settle("late", [0])
    assert not (await store.reserve(late)).admitted
    outcome = await store.peek(late._replace(hold_id="next"))
    assert (outcome.admitted, outcome.levels) == (True, [(0, 0, 5)])


async def test_a_server_that_is_killed_under_load_loses_no_call(
    server: RedisServer, store: RedisStore
) -> None:
    guard = guard_on(store)
    said: list[str] = []
    half = anyio.Event()

    async def agent() -> None:
        while "guard.denied budget_exceeded" not in said:
            said.append(await outcome_of(guard))
            if len(said) >= 4:
                half.set()
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(agent)
        await half.wait()
        await anyio.to_thread.run_sync(server.kill)
        await anyio.to_thread.run_sync(server.start)
    # An admission that the kill took the answer of is given back, never kept.
    allowed = said.count("allowed")
    assert await tokens_left(guard) == 100 - 10 * allowed
    rest = [await outcome_of(guard) for _ in range(11 - allowed)]
    assert rest == ["allowed"] * (10 - allowed) + ["guard.denied budget_exceeded"]


async def test_a_locked_file_is_no_refusal_and_blocks_no_loop(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = SQLiteStore(path, deadline=0.05)
    guard = guard_on(store)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    done = anyio.Event()
    said: list[str] = []
    beats = 0

    async def ask() -> None:
        said.append(await outcome_of(guard))
        if len(said) == 20:
            done.set()

    async def beat() -> None:
        nonlocal beats
        while not done.is_set():
            beats += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beat)
        for _ in range(20):
            tasks.start_soon(ask)
    assert said == ["guard.store_unavailable store_unavailable"] * 20
    # The loop turned all the while.
    assert beats > 20
    other.execute("ROLLBACK")
    other.close()
    assert await outcome_of(guard) == "allowed"
    await store.aclose()


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    text, link, newer = tmp_path / "text", tmp_path / "link", tmp_path / "newer"
    text.write_text("no database, but long enough to be read as one" * 100)
    link.symlink_to(tmp_path / "elsewhere")
    db = sqlite3.connect(newer)
    db.execute("PRAGMA user_version = 99")
    db.close()

    for path in (text, link, newer, tmp_path / "no" / "folder", tmp_path):
        with pytest.raises(ConfigError):
            SQLiteStore(path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_bad_address_of_redis_is_refused() -> None:
    for url, prefix in (("http://x", "t"), ("redis://x", "a b"), ("redis://x", "")):
        with pytest.raises(ConfigError):
            RedisStore(url, prefix=prefix)
