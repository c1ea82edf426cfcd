"""A batch of calls that is admitted as one: whole, or not at all."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import InvalidInputError
from toolcell.guard import (
    ActionGuard,
    AgentPolicy,
    Approvals,
    Approve,
    AuditLog,
    CallFacts,
    ShownRequest,
    Store,
)
from toolcell.guard.values.calls import call_hash

from ...support.guard.builders import FakeClock, call, refusal, spend
from ...support.guard.store_table import StoreMaker, make_store

__all__ = ["make_store"]
pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(make_store: StoreMaker, clock: FakeClock) -> AsyncIterator[Store]:
    made = make_store(clock)
    yield made
    await made.aclose()


def batch(calls: int, at_once: int = 1, **cost: Any) -> CallFacts:
    return CallFacts(calls=calls, at_once=at_once, cost=cost, run_id="r", turn="1")


def guard_on(store: Store, clock: FakeClock, **limits: Any) -> ActionGuard:
    policy = AgentPolicy(agent_id="a", allow=["*"], **limits)
    return ActionGuard([policy], store=store, clock=clock)


async def left(guard: ActionGuard) -> dict[str, Any]:
    return dict(await guard.remaining("a", "add", batch(1)))


async def test_a_batch_counts_as_so_many_calls(store: Store, clock: FakeClock) -> None:
    guard = guard_on(
        store,
        clock,
        max_concurrency=9,
        max_calls_per_turn=300,
        rate_limits=["200/minute", {"limit": "250/hour", "algorithm": "bucket"}],
        budgets=[
            {"unit": "calls", "limit": 1_000, "per": "global"},
            {"unit": "tokens", "limit": 5_000},
        ],
    )
    async with guard.admit(call(), batch(150, 8, tokens=4_000)) as permit:
        assert permit.decision.remaining == {
            "a 200 calls/60 s": 50,
            "a 250 calls/3600 s": 100,
            "a max_concurrency": 1,
            "a max_calls_per_turn": 150,
            "all calls/total": 850,
            "a tokens/total": 1_000,
        }
        await permit.settle({"calls": 140, "tokens": 700})

    assert await left(guard) == {
        "a 200 calls/60 s": 50,
        "a 250 calls/3600 s": 100,
        "a max_concurrency": 9,
        "a max_calls_per_turn": 160,
        "all calls/total": 860,
        "a tokens/total": 4_300,
    }


async def test_a_batch_that_does_not_fit_takes_nothing_and_says_what_would(
    store: Store, clock: FakeClock
) -> None:
    guard = guard_on(
        store,
        clock,
        rate_limits=["100/minute"],
        budgets=[{"unit": "calls", "limit": 1_000, "per": "global"}],
    )
    await spend(guard, call(), batch(30))
    clock.now += 10
    await spend(guard, call(), batch(60))

    denied = await refusal(guard, call(), batch(11))
    assert denied["reason"] == "rate_limited"
    assert denied["remaining"] == {"a 100 calls/60 s": 10, "all calls/total": 910}
    assert denied["retry_after"] == 50
    assert (await refusal(guard, call(), batch(41)))["retry_after"] == 60
    await spend(guard, call(), batch(10))
    clock.now += 50
    await spend(guard, call(), batch(30))


async def test_a_batch_that_never_fits_has_no_time_to_try_again(
    store: Store, clock: FakeClock
) -> None:
    for limit in ("100/minute", {"limit": "100/minute", "algorithm": "bucket"}):
        guard = guard_on(store, clock, rate_limits=[limit])
        denied = await refusal(guard, call(), batch(101))
        assert denied["reason"] == "rate_limited"
        assert "retry_after" not in denied


async def test_slots_are_those_that_run_at_once(store: Store, clock: FakeClock) -> None:
    guard = guard_on(store, clock, max_concurrency=10)
    async with guard.admit(call(), batch(1_000, 6)):
        assert (await refusal(guard, call(), batch(9, 5)))["reason"] == "concurrency"
        await spend(guard, call(), batch(9, 4))


async def test_a_batch_that_never_settles_costs_all_of_its_calls(
    store: Store, clock: FakeClock
) -> None:
    guard = guard_on(store, clock, budgets=[{"unit": "calls", "limit": 100}])
    async with guard.admit(call(), batch(60)):
        pass
    assert await left(guard) == {"a calls/total": 40}


async def test_a_single_call_costs_one_whatever_its_tool_reports(
    store: Store, clock: FakeClock
) -> None:
    guard = guard_on(store, clock, budgets=[{"unit": "calls", "limit": 100}])
    await spend(guard, call(), batch(1), calls=0)
    assert await left(guard) == {"a calls/total": 99}


async def test_an_approval_of_a_batch_is_for_its_number_of_calls() -> None:
    asked: list[str] = []

    async def person(request: Any) -> Approve:
        asked.append(ShownRequest(request).to_text())
        return Approve(approver="pat")

    policy = AgentPolicy(agent_id="a", allow=["*"], ask=["add"])
    guard = ActionGuard([policy], approvals=Approvals(handler=person))
    await spend(guard, call(), batch(10))
    await spend(guard, call(), batch(10_000))

    assert ["calls: 10\n" in f"{each}\n" for each in asked] == [True, False]
    assert "calls: 10000" in asked[1]
    hashes = {call_hash(call(), batch(calls)) for calls in (1, 10, 10_000)}
    assert len(hashes) == 3


async def test_the_audit_log_says_how_many_calls(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as log:
        policy = AgentPolicy(agent_id="a", allow=["*"])
        guard = ActionGuard([policy], audit=log)
        await spend(guard, call(), batch(500), calls=499)
        await spend(guard, call(), batch(1))

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.get("calls") for line in lines] == [500, 500, None, None]
    assert lines[1]["cost"] == {"calls": 499}


@pytest.mark.parametrize(("calls", "at_once"), [(0, 0), (3, 4), (3, 0), (1_000_001, 1)])
def test_numbers_that_make_no_batch_are_refused(calls: int, at_once: int) -> None:
    with pytest.raises(InvalidInputError, match="are no batch"):
        CallFacts(calls=calls, at_once=at_once)
