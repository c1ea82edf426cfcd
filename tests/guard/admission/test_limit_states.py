"""Limits as they are now: the maximum, what is used and held, and the next reset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolcell.core import ToolCall
from toolcell.guard import (
    ActionGuard,
    AgentPolicy,
    Budget,
    CallFacts,
    MemoryStore,
    SQLiteStore,
)
from toolcell.guard.spi import LimitState, RateLimit

pytestmark = pytest.mark.anyio
DAY = 86_400
NOW = 20_000 * DAY + 3_600.0
POLICY = AgentPolicy(
    agent_id="a",
    allow=["pay"],
    max_concurrency=3,
    rate_limits=[RateLimit(calls=2, seconds=60, per="agent")],
    budgets=[
        Budget(unit="usd", limit="10", window="day", per="agent"),
        Budget(unit="calls", limit=5, window="total", per="agent", dry_run=True),
        Budget(unit="tokens", limit=100, window="run", per="agent"),
    ],
)
FACTS = CallFacts(cost={"usd": "2.50", "tokens": 10}, run_id="r")


@pytest.fixture(params=["memory", "sqlite"])
async def guard(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    clock = lambda: NOW  # noqa: E731
    store: Any = MemoryStore(clock=clock)
    if request.param == "sqlite":
        store = SQLiteStore(tmp_path / "guard.db", clock=clock)
    yield ActionGuard([POLICY], store=store, clock=clock)
    await store.aclose()


async def states(guard: ActionGuard) -> dict[str, LimitState]:
    return {
        limit.unit + limit.window: limit
        for limit in await guard.limits("a", "pay", FACTS)
    }


async def test_limits_show_what_is_used_and_held(guard: ActionGuard) -> None:
    call = ToolCall(id="1", name="pay", agent_id="a")
    async with guard.admit(call, FACTS) as permit:
        during = await states(guard)
        await permit.settle({"usd": "1.00", "tokens": 10})
    async with guard.admit(call, FACTS) as permit:
        await permit.settle({"usd": "0.50", "tokens": 10})
    after = await states(guard)

    money = LimitState(
        "a usd/day", "usd", "day", "10.00", "0.00", "2.50", "7.50", (20_001) * DAY, True
    )
    assert during["usdday"] == money
    assert during["slotsopen"][3:7] == (3, 0, 1, 2)
    assert during["callsrate"][3:8] == (2, 1, 0, 1, None)
    assert after["usdday"] == money._replace(used="1.50", held="0.00", left="8.50")
    assert after["slotsopen"][3:7] == (3, 0, 0, 3)
    assert after["callsrate"][3:8] == (2, 2, 0, 0, NOW + 60)
    assert after["callstotal"][3:] == (5, 2, 0, 3, None, False)
    assert after["tokensrun"][3:8] == (100, 20, 0, 80, None)


async def test_what_is_left_is_that_of_the_limits(guard: ActionGuard) -> None:
    left = await guard.remaining("a", "pay", FACTS)

    assert left == {state.label: state.left for state in (await states(guard)).values()}
    assert len(left) == 5
    assert await guard.limits("nobody", "pay", FACTS) == []
    assert await guard.limits("a", "pay", CallFacts()) == []
