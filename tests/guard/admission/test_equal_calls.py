"""Equal calls that are made at once: each takes an approval of its own."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from typing import Any

import anyio
import anyio.from_thread
import pytest

from toolcell.core import GuardDeniedError, ToolCall
from toolcell.guard import (
    ActionGuard,
    AgentPolicy,
    ApprovalRequest,
    Approvals,
    ApprovalStore,
    Approve,
    CallFacts,
    Reject,
)
from toolcell.guard.spi import ApprovalRecord, RateLimit

pytestmark = [pytest.mark.anyio, pytest.mark.promise("T18")]

FACTS = CallFacts(run_id="r")


def guard_with(approvals: Approvals, **options: Any) -> ActionGuard:
    policy = AgentPolicy(agent_id="a", ask=["pay"], **options)
    return ActionGuard([policy], approvals=approvals)


async def made_at_once(guards: list[ActionGuard]) -> list[tuple[str, object]]:
    """Make one and the same call by each guard; return how each ended."""
    ended: list[tuple[str, object]] = []

    async def make(number: int, guard: ActionGuard) -> None:
        call = ToolCall(id=f"c{number}", name="pay", arguments={"sum": 1}, agent_id="a")
        try:
            async with guard.admit(call, FACTS) as permit:
                await permit.settle()
                ended.append(("ran", permit.call.arguments["sum"]))
        except GuardDeniedError as error:
            ended.append((error.details["reason"], None))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number, guard in enumerate(guards):
                tasks.start_soon(make, number, guard)
    return sorted(ended, key=str)


async def approve_all(approvals: Approvals) -> None:
    while True:
        for request in await approvals.pending():
            await approvals.answer(request.id, Approve(approver="anna"))
        await anyio.sleep(0.01)


async def test_a_handler_is_asked_about_each() -> None:
    asked: list[str] = []

    async def handler(request: ApprovalRequest) -> Approve:
        asked.append(request.id)
        return Approve(approver="anna")

    ended = await made_at_once([guard_with(Approvals(handler=handler))] * 3)

    assert ended == [("ran", 1)] * 3
    assert len(set(asked)) == 3


async def test_an_edit_is_of_one_call() -> None:
    replies: list[Approve | Reject] = [
        Approve(approver="anna", arguments={"sum": 7}),
        Approve(approver="anna"),
        Reject(approver="anna"),
    ]

    async def handler(_: ApprovalRequest) -> Approve | Reject:
        return replies.pop(0)

    ended = await made_at_once([guard_with(Approvals(handler=handler))] * 3)

    assert ended == [("approval_denied", None), ("ran", 1), ("ran", 7)]


async def test_one_that_waits_for_its_turn_counts_in_no_rate() -> None:
    class Slow(ApprovalStore):
        """All that may look at an approval have done so before its use."""

        def get(self, request_id: str) -> ApprovalRecord | None:
            looks[request_id] += 1
            return super().get(request_id)

        def use(self, request_id: str, *args: Any) -> bool:
            looks_before_use = looks[request_id]
            anyio.from_thread.run(anyio.wait_all_tasks_blocked)
            alone.append(looks[request_id] == looks_before_use)
            return super().use(request_id, *args)

    looks: Counter[str] = Counter()
    alone: list[bool] = []
    approvals = Approvals(Slow(), answered_elsewhere=True)
    guard = guard_with(approvals, rate_limits=[RateLimit(calls=3, seconds=60)])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(approve_all, approvals)
        ended = await made_at_once([guard] * 4)
        tasks.cancel_scope.cancel()

    assert ended == [("ran", 1)] * 3 + [("rate_limited", None)]
    assert alone == [True] * 3


async def test_guards_with_one_store_do_not_refuse_each_other() -> None:
    class AtOnce(ApprovalStore):
        """Both guards have seen the approval before the first one uses it."""

        def use(self, *args: Any) -> bool:
            if next(uses) < 2:
                both.wait(60)
            return super().use(*args)

    both, uses = threading.Barrier(2), itertools.count()
    store = AtOnce()

    async def handler(_: ApprovalRequest) -> Approve:
        return Approve(approver="anna")

    guards = [guard_with(Approvals(store, handler=handler)) for _ in range(2)]

    assert await made_at_once(guards) == [("ran", 1)] * 2
