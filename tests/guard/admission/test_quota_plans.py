"""What the guard remembers of a call's lines must never outlive its truth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from toolcell.core import GuardDeniedError
from toolcell.guard import ActionGuard, AgentPolicy, MemoryStore
from toolcell.guard.stores.base import CORRECTION_MICROSECONDS, Charge, Reservation

from ...conftest import run_apart
from ...support.guard.builders import (
    FREE,
    FakeClock,
    call,
    facts,
    in_threads,
    refusal,
    spend,
)

pytestmark = pytest.mark.anyio

SECOND = 1_000_000


def guard_with(clock: FakeClock, store: MemoryStore, **fields: Any) -> ActionGuard:
    policy = AgentPolicy(agent_id="a", allow=["*"], **fields)
    return ActionGuard([policy], store=store, clock=clock)


@pytest.mark.parametrize(
    ("window", "rest"), [("hour", 2800), ("day", 6400), ("month", 1_388_800)]
)
async def test_the_same_facts_in_the_next_period_are_of_the_next_period(
    window: str, rest: int
) -> None:
    clock, known = FakeClock(), facts(usd="1")
    budgets = [{"unit": "usd", "limit": "2", "window": window}]
    guard = guard_with(clock, MemoryStore(clock=clock), budgets=budgets)
    for _ in range(2):
        await spend(guard, call(), known, usd="1")

    clock.now += rest - 0.001
    assert (await refusal(guard, call(), known))["retry_after"] == pytest.approx(0.001)
    clock.now += 0.001
    for _ in range(2):
        await spend(guard, call(), known, usd="1")
    await refusal(guard, call(), known)
    # A clock that runs back finds yesterday as it was.
    clock.now -= 0.001
    await refusal(guard, call(), known)


async def test_other_facts_are_other_lines() -> None:
    clock = FakeClock()
    budgets = [{"unit": "tokens", "limit": 10, "window": "run"}]
    guard = guard_with(clock, MemoryStore(clock=clock), budgets=budgets)

    for tokens in (3, 4, 3):
        await spend(guard, call(), facts(tokens=tokens), tokens=tokens)
    await refusal(guard, call(), facts(tokens=1))
    await spend(guard, call(), facts(tokens=0))


async def test_a_reset_is_seen_by_calls_that_were_made_before() -> None:
    clock = FakeClock()
    guard = guard_with(
        clock,
        MemoryStore(clock=clock),
        rate_limits=["2/minute", {"limit": "2/hour", "algorithm": "bucket"}],
        budgets=[{"unit": "calls", "limit": 2}],
    )
    for _ in range(3):
        for _ in range(2):
            await spend(guard, call())
        await refusal(guard, call())
        assert await guard.reset("a", by="pat") == 3


async def test_what_was_settled_before_a_reset_is_forgotten_with_it() -> None:
    clock = FakeClock()
    budgets = [{"unit": "usd", "limit": "2"}]
    guard = guard_with(clock, MemoryStore(clock=clock), budgets=budgets)
    for _ in range(3):
        await spend(guard, call(), facts(usd="2"), usd="2")
        assert await guard.reset("a", by="pat") == 1


async def test_rates_go_by_the_clock_of_the_store() -> None:
    clock, clock_of_store = FakeClock(), FakeClock()
    guard = guard_with(clock, MemoryStore(clock=clock_of_store), rate_limits=["1/hour"])
    await spend(guard, call())

    clock.now += 7200
    await refusal(guard, call())
    clock_of_store.now += 3600
    await spend(guard, call())


async def test_a_settlement_after_the_end_of_its_hold_corrects_it() -> None:
    clock, known = FakeClock(), facts(usd="2")
    known = replace(known, hold_seconds=10)
    budgets = [{"unit": "usd", "limit": "3"}]
    guard = guard_with(clock, MemoryStore(clock=clock), budgets=budgets)
    async with guard.admit(call(), known) as permit:
        clock.now += 11
        await refusal(guard, call(), known)
        await permit.settle({"usd": "1"})
    await spend(guard, call(), known, usd="2")
    await refusal(guard, call(), known)


async def test_a_counter_that_was_forgotten_is_not_counted_on() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock, max_keys=4)
    guard = guard_with(
        clock, store, rate_limits=[{"limit": "1/minute", "per": "agent_tool"}]
    )
    await spend(guard, call("first"))
    clock.now += 60
    # Makes room for itself by forgetting the first one.
    for number in range(4):
        await spend(guard, call(f"tool{number}"))

    clock.now += 60
    await spend(guard, call("first"))
    assert (await refusal(guard, call("first")))["retry_after"] == 60


async def test_a_refused_call_leaves_no_counter() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock, max_keys=2)
    guard = guard_with(
        clock, store, budgets=[{"unit": "calls", "limit": 1, "per": "agent_tool"}]
    )
    await spend(guard, call("add"))

    for number in range(20):
        known = Reservation(str(number), (), [Charge(f"new {number}", 2, 1)], SECOND)
        assert not (await store.reserve(known)).admitted
    await spend(guard, call("sub"))


async def test_a_late_correction_survives_the_sweep_of_counters() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock, max_keys=8)
    account = Charge("kept", 5, 10, keep=2 * SECOND, refund=True)
    await store.reserve(Reservation("late", (), [account], SECOND))
    clock.now += 10

    for number in range(30):
        other = Charge(f"other {number}", 1, 10, keep=SECOND)
        await store.reserve(Reservation(f"{number}", (), [other], SECOND))
        await store.settle(f"{number}", [1])
        clock.now += 2
    assert await store.settle("late", [4])
    [(used, held, _)] = (await store.peek(Reservation("", (), [account], 1))).levels
    assert (used, held) == (4, 0)
    clock.now += CORRECTION_MICROSECONDS / SECOND
    assert not await store.settle("late", [4])


def test_threads_that_share_their_facts_are_admitted_to_the_last_one() -> None:
    clock, known = FakeClock(), facts(tokens=3)
    guard = guard_with(
        clock,
        MemoryStore(clock=clock),
        rate_limits=["10000/day"],
        max_concurrency=8,
        budgets=[{"unit": "tokens", "limit": 1500, "window": "day"}],
    )
    admitted: list[int] = []

    async def try_often(_: int) -> None:
        for number in range(100):
            try:
                async with guard.admit(call(), known) as permit:
                    await permit.settle({"tokens": 3})
                admitted.append(number)
            except GuardDeniedError:
                pass

    in_threads(8, try_often)
    told = run_apart(guard.decide, call(), FREE)
    assert len(admitted) == 500
    assert told.remaining["a tokens/day"] == 0
    assert told.remaining["a max_concurrency"] == 8
