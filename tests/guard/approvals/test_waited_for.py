"""Requests whose calls have given up are told apart from those that still wait."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from toolcell.core import ToolCall
from toolcell.guard import (
    ApprovalRequest,
    Approvals,
    ApprovalStore,
    CallFacts,
    Decision,
)

pytestmark = [pytest.mark.anyio, pytest.mark.promise("JA6")]

ASKED = Decision(verdict="ask", reason="approval_required", rule="a.ask[0]")
CALL = ToolCall(id="c1", name="pay", arguments={"sum": 1}, agent_id="a")


class Asking:
    """Approvals with a clock that a test moves, and nobody to answer."""

    def __init__(self, folder: Path) -> None:
        self.now = 1_000.25
        self.store = ApprovalStore(folder / "approvals.db")
        self.approvals = Approvals(
            self.store, answered_elsewhere=True, clock=lambda: self.now
        )

    async def ask(self, seconds: float, *, park: bool = False) -> None:
        facts = CallFacts(run_id="r", park=park)
        await self.approvals.ask(CALL, facts, ASKED, wait_seconds=seconds)

    async def request(self) -> ApprovalRequest:
        while not (found := await self.approvals.pending()):
            await anyio.lowlevel.checkpoint()
        [request] = found
        return request


@pytest.fixture
def asking(tmp_path: Path) -> Asking:
    return Asking(tmp_path)


async def test_a_call_that_gave_up_waits_no_more(asking: Asking) -> None:
    await asking.ask(0.001)
    request = await asking.request()

    assert request.is_waited_for(asking.now)
    assert not request.is_waited_for(asking.now + 0.01)
    assert await asking.approvals.count_waited_for() == 1
    asking.now += 0.01
    assert await asking.approvals.count_waited_for() == 0


async def test_a_call_that_was_cancelled_waits_no_more(asking: Asking) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asking.ask, 300.0)
        before = await asking.request()
        tasks.cancel_scope.cancel()
    after = await asking.request()

    assert (before.waits_until, before.is_waited_for(asking.now)) == (1_300.25, True)
    assert not after.is_waited_for(asking.now)
    assert await asking.approvals.count_waited_for() == 0
    assert after.digest == before.digest


async def test_the_same_call_that_comes_again_waits_anew(asking: Asking) -> None:
    await asking.ask(0.001)
    asking.now += 60
    gone = await asking.request()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asking.ask, 300.0)
        while not (again := await asking.request()).is_waited_for(asking.now):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()

    assert not gone.is_waited_for(asking.now)
    assert (again.id, again.waits_until) == (gone.id, 1_360.25)


@pytest.mark.parametrize("seconds", [0.0, 300.0])
async def test_a_parked_call_waits_as_long_as_its_request(
    asking: Asking, seconds: float
) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: asking.ask(seconds, park=True))
        await asking.request()
        tasks.cancel_scope.cancel()
    request = await asking.request()

    assert request.waits_until == request.expires_at
    assert await asking.approvals.count_waited_for() == 1
