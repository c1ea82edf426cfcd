"""Many calls that wait for people at once."""

from __future__ import annotations

import threading
from pathlib import Path

import anyio
import pytest

from toolcell.core import StoreUnavailableError
from toolcell.guard import (
    ActionGuard,
    AgentPolicy,
    Approvals,
    ApprovalStore,
    Approve,
    Reject,
)

from ...support.guard.builders import FREE, call

pytestmark = [pytest.mark.anyio, pytest.mark.promise("F5")]

CALLS = 1000


async def test_a_thousand_waiting_calls_take_a_handful_of_threads(
    tmp_path: Path,
) -> None:
    store, others = ApprovalStore(tmp_path / "a.db"), ApprovalStore(tmp_path / "a.db")
    approvals = Approvals(store, answered_elsewhere=True, max_pending=CALLS)
    guard = ActionGuard([AgentPolicy(agent_id="a", ask=["*"])], approvals=approvals)
    desk = Approvals(others)
    told: dict[int, str] = {}
    most, beats = 0, 0

    async def one(number: int) -> None:
        try:
            async with guard.admit(call(n=number), FREE) as permit:
                await permit.settle({})
                told[number] = "ran"
        except Exception as error:
            told[number] = str(error)

    async def watch() -> None:
        nonlocal most, beats
        while True:
            most, beats = max(most, threading.active_count()), beats + 1
            await anyio.sleep(0.005)

    before = threading.active_count()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        async with anyio.create_task_group() as waiting:
            for number in range(CALLS):
                waiting.start_soon(one, number)
            with anyio.fail_after(200):
                while len(asked := await desk.pending()) < CALLS:
                    await anyio.sleep(0.01)
            for request in asked:
                wanted = int(str(request.call.arguments["n"])) % 3
                no = Reject(approver="pat", reason="no")
                reply = Approve(approver="pat") if wanted else no
                await desk.answer(request.id, reply)
        tasks.cancel_scope.cancel()
    assert most - before <= 20
    assert beats > 20
    assert len(told) == CALLS
    for number, said in told.items():
        assert said == "ran" if number % 3 else "a person refused this call" in said
    store.close()
    others.close()


async def test_waiting_calls_look_together(monkeypatch: pytest.MonkeyPatch) -> None:
    store, looks = ApprovalStore(), []
    approvals = Approvals(store, answered_elsewhere=True)
    look = store.ended

    def counted(ids: set[str], now: float) -> object:
        looks.append(len(ids))
        return look(ids, now)

    monkeypatch.setattr(store, "ended", counted)
    guard = ActionGuard([AgentPolicy(agent_id="a", ask=["*"])], approvals=approvals)

    async def one(number: int) -> None:
        async with guard.admit(call(n=number), FREE) as permit:
            await permit.settle({})

    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(one, number)
        with anyio.fail_after(60):
            while not looks or looks[-1] < 50:
                await anyio.sleep(0.01)
        for request in await approvals.pending():
            await approvals.answer(request.id, Approve(approver="pat"))


async def test_a_store_that_fails_refuses_all_who_look_at_it(tmp_path: Path) -> None:
    store = ApprovalStore(tmp_path / "a.db")
    approvals = Approvals(store, answered_elsewhere=True)
    guard = ActionGuard([AgentPolicy(agent_id="a", ask=["*"])], approvals=approvals)
    told = []

    async def one(number: int) -> None:
        with pytest.raises(StoreUnavailableError):
            async with guard.admit(call(n=number), FREE):
                pass
        told.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(one, number)
        with anyio.fail_after(60):
            while len(await approvals.pending()) < 20:
                await anyio.sleep(0.01)
        (tmp_path / "a.db").rename(tmp_path / "b.db")
    assert len(told) == 20
    store.close()
