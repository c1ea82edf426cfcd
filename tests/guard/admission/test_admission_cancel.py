"""asyncio's own cancel, which heeds no shield: nothing stays held, nothing unsaid."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from toolcell.guard import ActionGuard, AgentPolicy, AuditLog

from ...support.guard.builders import FREE, call, spend
from ...support.guard.store_table import Gated

pytestmark = pytest.mark.anyio


async def stopped_at(store: Gated, gate: str, task: asyncio.Task[object]) -> None:
    """Cancel a task as soon as it comes to a gate."""
    store.shut, store.asked = {gate}, 0
    while not (store.asked or task.done()):
        await anyio.lowlevel.checkpoint()
    task.cancel()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Gated]:
    made = Gated(tmp_path / "guard.db")
    yield made
    await made.aclose()


def guard_on(store: Gated, audit: AuditLog | None = None) -> ActionGuard:
    policy = AgentPolicy(agent_id="a", allow=["*"], max_concurrency=1)
    return ActionGuard([policy], store=store, audit=audit)


async def ended(task: asyncio.Task[object]) -> BaseException | None:
    await asyncio.wait([task])
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def held(store: Gated) -> int:
    [[number]] = store._db.execute("SELECT SUM(held) FROM accounts").fetchall()
    return int(number)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the guard logged; what else runs in this process may log too."""
    of_guard = [
        record for record in caplog.records if record.name.startswith("toolcell.guard")
    ]
    return [each.getMessage() for each in of_guard]


async def leave(guard: ActionGuard) -> None:
    async with guard.admit(call(), FREE):
        pass


@pytest.mark.parametrize("settles", [True, False])
async def test_a_cancel_while_a_call_is_settled_leaks_nothing(
    store: Gated, tmp_path: Path, settles: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as audit:
        guard = guard_on(store, audit)
        work = spend(guard, call()) if settles else leave(guard)
        task = asyncio.ensure_future(work)
        await stopped_at(store, "settle", task)
        store.shut.clear()
        assert isinstance(await ended(task), asyncio.CancelledError)
        # Before anybody asks the store again.
        assert held(store) == 0
    events = [json.loads(line) for line in path.read_text().splitlines()]
    said = [(event["event"], event.get("status")) for event in events]
    status = "ok" if settles else "unsettled"
    assert said == [("decision", None), ("outcome", status)]
    assert logged(caplog) == []


async def test_a_call_that_is_cancelled_twice_is_settled_with_the_next_answer(
    store: Gated, caplog: pytest.LogCaptureFixture
) -> None:
    guard = guard_on(store)
    task = asyncio.ensure_future(spend(guard, call()))
    await stopped_at(store, "settle", task)
    await stopped_at(store, "settle", task)
    assert isinstance(await ended(task), asyncio.CancelledError)
    assert held(store) == 1
    store.shut.clear()

    await guard.decide(call(), FREE)
    assert held(store) == 0
    assert logged(caplog) == []


async def test_a_cancel_while_others_are_caught_up_is_no_outage(
    store: Gated, caplog: pytest.LogCaptureFixture
) -> None:
    guard = guard_on(store)
    admitted = asyncio.ensure_future(spend(guard, call()))
    await stopped_at(store, "reserve", admitted)
    await ended(admitted)
    looking = asyncio.ensure_future(guard.decide(call(), FREE))
    await stopped_at(store, "settle", looking)
    assert isinstance(await ended(looking), asyncio.CancelledError)
    store.shut.clear()

    with caplog.at_level(logging.WARNING):
        assert (await guard.decide(call(), FREE)).allowed
    assert logged(caplog) == []
    await spend(guard, call())
