"""Rows of calls where several are undecided at once: the refused leave no trace."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from toolcell.core import GuardDeniedError
from toolcell.guard import ActionGuard, AgentPolicy

from ...support.guard.builders import call, facts, spend
from ...support.guard.store_table import Gated

pytestmark = pytest.mark.anyio
TOO_DEAR = 2


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Gated]:
    made = Gated(tmp_path / "guard.db")
    yield made
    await made.aclose()


@pytest.fixture
def guard(store: Gated) -> ActionGuard:
    policy = AgentPolicy(
        agent_id="a",
        allow=["*"],
        max_consecutive_calls=3,
        budgets=[{"unit": "tokens", "limit": 1}],
    )
    return ActionGuard([policy], store=store)


async def outcome(guard: ActionGuard, name: str, tokens: int = 0) -> str:
    try:
        await spend(guard, call(name), facts(tokens=tokens), tokens=tokens)
    except GuardDeniedError as refused:
        return str(refused.details["reason"])
    return "ran"


async def together(guard: ActionGuard, store: Gated, **asked: int) -> list[str]:
    """Return what becomes of calls, none decided before all have come to the store."""
    store.shut, store.asked = {"reserve"}, 0
    said: dict[str, str] = {}

    async def ask(key: str, tokens: int) -> None:
        said[key] = await outcome(guard, key.rstrip("0123456789"), tokens)

    async with anyio.create_task_group() as tasks:
        for key, tokens in asked.items():
            tasks.start_soon(ask, key, tokens)
        while store.asked + len(said) < len(asked):
            await anyio.lowlevel.checkpoint()
        store.shut.clear()
    return [said[key] for key in asked]


async def test_calls_refused_together_are_no_row(
    guard: ActionGuard, store: Gated
) -> None:
    refused = ["budget_exceeded"] * 2
    for _ in range(4):
        assert await together(guard, store, t1=TOO_DEAR, t2=TOO_DEAR) == refused
    said = [await outcome(guard, "t") for _ in range(4)]
    assert said == ["ran", "ran", "ran", "consecutive"]


async def test_calls_refused_together_end_no_row(
    guard: ActionGuard, store: Gated
) -> None:
    for _ in range(3):
        assert await outcome(guard, "t") == "ran"
    refused = ["budget_exceeded"] * 2
    assert await together(guard, store, u=TOO_DEAR, v=TOO_DEAR) == refused
    assert await outcome(guard, "t") == "consecutive"


async def test_a_call_that_is_undecided_ends_no_row_yet(
    guard: ActionGuard, store: Gated
) -> None:
    for _ in range(3):
        assert await outcome(guard, "t") == "ran"
    said = await together(guard, store, u=TOO_DEAR, t=0)
    assert said == ["budget_exceeded", "consecutive"]
    assert await outcome(guard, "u") == "ran"
    assert await outcome(guard, "t") == "ran"


async def test_calls_admitted_together_are_a_row(
    guard: ActionGuard, store: Gated
) -> None:
    said = await together(guard, store, t1=0, u=TOO_DEAR, t2=0, t3=0, t4=0)
    assert said == ["ran", "budget_exceeded", "ran", "ran", "consecutive"]
    assert await outcome(guard, "t") == "consecutive"
