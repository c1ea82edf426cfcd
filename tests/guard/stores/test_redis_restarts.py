"""Redis stopped, killed and hung under load: closed while away, exact afterwards."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import GuardDeniedError, GuardError
from toolcell.guard import ActionGuard, AgentPolicy, CallFacts, RedisStore

from ...conftest import run_apart
from ...support.guard.builders import call, impatient_threads, spend
from ...support.guard.redis_server import RedisServer
from ...support.guard.store_table import sizes
from ...support.guard.worker import PATIENCE

LIMIT = 300
THREADS = 4
SHORT = 0.2
"""Seconds after which a server that hangs is away."""

ENDINGS: dict[str, tuple[Callable[[RedisServer], None], ...]] = {
    "killed": (RedisServer.kill, RedisServer.start),
    "stopped": (RedisServer.stop, RedisServer.start),
    "hung": (RedisServer.pause, RedisServer.resume),
}


@dataclass
class Load:
    """Threads that call until it is over, and what they were told."""

    guard: ActionGuard
    run: str
    down: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    spent: list[int] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    refused_while_down: list[str] = field(default_factory=list)
    admitted_while_down: int = 0
    answers: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    async def agent(self, chance: random.Random) -> None:
        while not self.over.is_set():
            held = chance.randrange(1, 5)
            await self._call(held, chance.randrange(held + 1))
            self.answers.release()

    async def _call(self, held: int, cost: int) -> None:
        down = self.down.is_set()
        known = CallFacts(cost={"tokens": held}, run_id=self.run)
        try:
            async with self.guard.admit(call(), known) as permit:
                self.admitted_while_down += down and self.down.is_set()
                await permit.settle({"tokens": cost})
            self.spent.append(cost)
        except GuardError as error:
            assert error.kind.removeprefix("guard.") in ("denied", "store_unavailable")
            told = self.refused_while_down if down and self.down.is_set() else []
            for list_ in (told, self.refused):
                list_.append(error.details["reason"])

    def wait_for(self, heard: Callable[[], bool]) -> None:
        while not heard():
            assert self.answers.acquire(timeout=PATIENCE)

    @contextmanager
    def threads(self, chance: random.Random) -> Iterator[None]:
        threads = [
            threading.Thread(
                target=anyio.run, args=[self.agent, random.Random(chance.random())]
            )
            for _ in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.over.set()
            for thread in threads:
                thread.join()


def guard_on(store: RedisStore) -> ActionGuard:
    budgets = [{"unit": "tokens", "limit": LIMIT, "window": "run"}]
    return ActionGuard(
        [AgentPolicy(agent_id="a", allow=["*"], budgets=budgets)], store=store
    )


async def tokens_left(guard: ActionGuard, run: str) -> Any:
    known = CallFacts(cost={}, run_id=run)
    return (await guard.decide(call(), known)).remaining.get("a tokens/run")


async def spend_tokens(guard: ActionGuard, run: str, tokens: int) -> None:
    known = CallFacts(cost={"tokens": tokens}, run_id=run)
    await spend(guard, call(), known, tokens=tokens)


def outage(
    server: RedisServer, guard: ActionGuard, ending: str, name: str
) -> list[int]:
    """Take the server away under load and bring it back; return what was spent."""
    away, back = ENDINGS[ending]
    chance = random.Random(name)
    load = Load(guard, name)
    calls = chance.randrange(30)
    with load.threads(chance):
        load.wait_for(lambda: len(load.spent) + len(load.refused) >= calls)
        away(server)
        load.down.set()
        load.wait_for(
            lambda: load.admitted_while_down + len(load.refused_while_down) >= THREADS
        )
        load.down.clear()
        back(server)
        before = len(load.spent)
        load.wait_for(
            lambda: len(load.spent) > before or "budget_exceeded" in load.refused
        )
    assert load.admitted_while_down == 0
    assert set(load.refused_while_down) == {"store_unavailable"}
    return load.spent


@pytest.mark.promise("E-113", "cluster-16")
@pytest.mark.parametrize("outages", sizes(4, 200, 1800))
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_server_away_under_load_refuses_and_comes_back_exact(
    tmp_path: Path, ending: str, outages: int
) -> None:
    server = RedisServer(tmp_path)
    server.start()
    store = RedisStore(server.url, deadline=SHORT)
    patient = RedisStore(server.url, deadline=PATIENCE)
    guard, witness = guard_on(store), guard_on(patient)
    try:
        for number in range(outages):
            run = f"{ending} {number}"
            with impatient_threads():
                spent = outage(server, guard, ending, run)
            # What was put off is settled with the first answer, unless that is slow.
            while run_apart(tokens_left, guard, run) is None or guard._ledger._pending:
                pass
            left = LIMIT - sum(spent)
            assert run_apart(tokens_left, witness, run) == left, run
            run_apart(spend_tokens, witness, run, left)
            with pytest.raises(GuardDeniedError):
                run_apart(spend_tokens, witness, run, 1)
    finally:
        run_apart(store.aclose)
        run_apart(patient.aclose)
        server.kill()


def test_a_server_that_keeps_nothing_begins_anew(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, keeps=False)
    server.start()
    store = RedisStore(server.url, deadline=PATIENCE)
    guard = guard_on(store)
    try:
        run_apart(spend_tokens, guard, "r", LIMIT)
        server.kill()
        server.start()
        assert run_apart(tokens_left, guard, "r") == LIMIT
    finally:
        run_apart(store.aclose)
        server.kill()
