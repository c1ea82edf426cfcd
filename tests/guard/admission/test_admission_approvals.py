"""The guard and people: a parked call passes every check again before it runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import AuditError, GuardDeniedError, ToolCall
from toolcell.guard import (
    ActionGuard,
    AgentPolicy,
    ApprovalRequest,
    Approvals,
    ApprovalStore,
    Approve,
    AuditLog,
    Budget,
    CallFacts,
    Grant,
    Reject,
    verify_audit,
)

from ...support.child import Child
from ...support.guard.builders import refusal
from ...support.guard.patience import PATIENT

pytestmark = pytest.mark.anyio

Handler = Callable[[ApprovalRequest], Awaitable[Approve | Reject | None]]
FACTS = CallFacts(run_id="r", cost={"usd": "0.10"})
ANNA = Approve(approver="anna")


def pay(amount: int = 1, **changes: Any) -> ToolCall:
    values = {"id": "c", "name": "pay", "arguments": {"sum": amount}, "agent_id": "a"}
    return ToolCall(**{**values, **changes})


def policy(**changes: Any) -> AgentPolicy:
    return AgentPolicy(
        **{"agent_id": "a", "allow": ["look"], "ask": ["pay"], **changes}
    )


def answering(*replies: Approve | Reject | None) -> tuple[Handler, list[str]]:
    """Return a handler that gives these replies in turn, and the calls it was asked."""
    asked: list[str] = []
    left = list(replies)

    async def handler(request: ApprovalRequest) -> Approve | Reject | None:
        asked.append(request.call.id)
        return left.pop(0) if len(left) > 1 else left[0]

    return handler, asked


async def test_a_call_that_cannot_be_completed_is_refused() -> None:
    async def complete(call: ToolCall) -> ToolCall:
        raise GuardDeniedError("its body broke off")

    handler, asked = answering(ANNA)
    guard = ActionGuard([policy()], approvals=Approvals(handler=handler))
    with pytest.raises(GuardDeniedError, match="broke off") as refused:
        await guard.admit(pay(), FACTS, complete=complete).__aenter__()
    assert (refused.value.details["reason"], asked) == ("bad_call", [])


async def test_a_call_is_not_completed_where_nobody_can_be_asked() -> None:
    completed: list[ToolCall] = []

    async def complete(call: ToolCall) -> ToolCall:
        completed.append(call)
        return call

    guard = ActionGuard([policy()])
    with pytest.raises(GuardDeniedError, match="nobody can be asked"):
        await guard.admit(pay(), FACTS, complete=complete).__aenter__()
    assert completed == []


async def test_a_call_runs_when_a_person_agreed() -> None:
    handler, asked = answering(ANNA)
    guard = ActionGuard([policy()], approvals=Approvals(handler=handler))
    before = await guard.decide(pay(), FACTS)
    for _ in range(2):
        async with guard.admit(pay(), FACTS) as permit:
            await permit.settle({"usd": "0.05"})

    assert (before.verdict, before.reason) == ("ask", "approval_required")
    # The approval of the first call is not one of the second.
    assert len(asked) == 2


async def test_a_rejection_reaches_the_model_and_is_remembered() -> None:
    handler, asked = answering(Reject(approver="anna", reason="too much"))
    guard = ActionGuard([policy()], approvals=Approvals(handler=handler))
    refusals = [await refusal(guard, pay(), FACTS) for _ in range(3)]

    assert len(asked) == 1
    assert {each["reason"] for each in refusals} == {"approval_denied"}
    assert {each["detail"] for each in refusals} == {
        "a person refused this call: too much"
    }
    told = await guard.decide(pay(), FACTS)
    assert (told.verdict, told.reason) == ("deny", "approval_denied")


async def test_an_agent_cannot_approve_for_another_however_it_is_written() -> None:
    handler, _ = answering(Approve(approver="Agent B"))
    agents = [policy(), policy(agent_id="agent-b")]
    guard = ActionGuard(agents, approvals=Approvals(handler=handler))

    assert (await refusal(guard, pay(), FACTS))["reason"] == "approval_denied"


@pytest.mark.promise("RA-06")
async def test_nobody_there_is_a_refusal() -> None:
    silent, _ = answering(None)
    for approvals in (None, Approvals(), Approvals(handler=silent)):
        guard = ActionGuard([policy()], approvals=approvals)
        assert (await refusal(guard, pay(), FACTS))["reason"] == "approval_unavailable"


@pytest.mark.promise("JA3")
async def test_a_refusal_names_the_request_that_stays_open() -> None:
    silent, _ = answering(None)
    approvals = Approvals(handler=silent)
    guard = ActionGuard([policy()], approvals=approvals)
    with pytest.raises(GuardDeniedError) as refused:
        async with guard.admit(pay(), FACTS):
            pass
    [request] = await approvals.pending()

    assert refused.value.details["approval_id"] == request.id
    assert f"the request {request.id} can be answered until" in str(refused.value.hint)
    await approvals.answer(request.id, ANNA)
    async with guard.admit(pay(), FACTS):
        pass


async def test_a_call_in_a_cell_that_may_not_wait_asks_nobody() -> None:
    handler, asked = answering(ANNA)
    guard = ActionGuard([policy()], approvals=Approvals(handler=handler))
    facts = CallFacts(run_id="r", approval_seconds=0)

    assert (await refusal(guard, pay(), facts))["reason"] == "approval_unavailable"
    assert asked == []


@pytest.mark.promise("RA-04")
async def test_what_is_refused_anyway_is_not_asked() -> None:
    handler, asked = answering(ANNA)
    guard = ActionGuard(
        [policy(budgets=[Budget(unit="usd", limit="0.05")], deny=["pay2"])],
        approvals=Approvals(handler=handler),
    )

    assert (await refusal(guard, pay(), FACTS))["reason"] == "budget_exceeded"
    assert (await refusal(guard, pay(name="pay2"), FACTS))["reason"] == "denied"
    assert asked == []


async def test_a_policy_that_changed_meanwhile_decides() -> None:
    guard: ActionGuard

    async def handler(_: ApprovalRequest) -> Approve:
        guard.replace_policies([policy(deny=["pay"])])
        return ANNA

    guard = ActionGuard([policy()], approvals=Approvals(handler=handler))
    assert (await refusal(guard, pay(), FACTS))["reason"] == "denied"

    # The approval was not used up by the refusal.
    guard.replace_policies([policy()])
    async with guard.admit(pay(), FACTS) as permit:
        assert permit.decision.allowed


async def test_an_edited_call_goes_through_the_policy_again() -> None:
    deny = {"tools": ["pay"], "when": {"sum": {"min": 100}}}
    for amount, allowed in ((5, True), (500, False)):
        handler, asked = answering(Approve(approver="anna", arguments={"sum": amount}))
        guard = ActionGuard([policy(deny=[deny])], approvals=Approvals(handler=handler))
        if allowed:
            async with guard.admit(pay(), FACTS) as permit:
                assert permit.call.arguments == {"sum": amount}
        else:
            assert (await refusal(guard, pay(), FACTS))["reason"] == "denied"
        assert len(asked) == 1


async def test_a_limit_reached_meanwhile_does_not_burn_the_approval() -> None:
    guard: ActionGuard
    asked: list[str] = []

    async def handler(request: ApprovalRequest) -> Approve:
        asked.append(request.id)
        spent = CallFacts(run_id="r", cost={"usd": "0.10"})
        async with guard.admit(pay(name="look"), spent) as permit:
            await permit.settle({"usd": "0.10"})
        return ANNA

    guard = ActionGuard(
        [policy(budgets=[Budget(unit="usd", limit="0.15")])],
        approvals=Approvals(handler=handler),
    )
    assert (await refusal(guard, pay(), FACTS))["reason"] == "budget_exceeded"

    await guard.reset("a", by="anna")
    async with guard.admit(pay(), FACTS) as permit:
        await permit.settle({"usd": "0.10"})
    assert len(asked) == 1


async def test_no_agent_approves_for_another_or_itself() -> None:
    for approver in ("a", "b"):
        handler, _ = answering(Approve(approver=approver))
        guard = ActionGuard(
            [policy(), policy(agent_id="b")], approvals=Approvals(handler=handler)
        )
        refused = await refusal(guard, pay(), FACTS)
        assert refused["reason"] in ("approval_denied", "approval_unavailable")


@pytest.mark.promise("RA-07")
async def test_a_grant_spares_the_next_question_and_no_check() -> None:
    grant = Grant(arguments=(), seconds=600)
    handler, asked = answering(Approve(approver="anna", grant=grant))
    guard = ActionGuard(
        [policy(budgets=[Budget(unit="calls", limit=3)])],
        approvals=Approvals(handler=handler),
    )
    for amount in range(3):
        async with guard.admit(pay(amount), FACTS) as permit:
            await permit.settle()

    assert len(asked) == 1
    assert (await refusal(guard, pay(9), FACTS))["reason"] == "budget_exceeded"


async def test_calls_of_a_batch_wait_side_by_side() -> None:
    approvals = Approvals(answered_elsewhere=True)
    guard = ActionGuard([policy()], approvals=approvals)
    ended: dict[int, str] = {}

    async def run(amount: int) -> None:
        try:
            async with guard.admit(pay(amount), FACTS):
                ended[amount] = "ran"
        except GuardDeniedError as error:
            ended[amount] = error.details["reason"]

    async with anyio.create_task_group() as tasks:
        for amount in range(4):
            tasks.start_soon(run, amount)
        while len(requests := await approvals.pending()) < 4:
            await anyio.lowlevel.checkpoint()
        for request in requests:
            odd = request.call.arguments["sum"] in (1, 3)
            await approvals.answer(request.id, Reject(approver="bob") if odd else ANNA)

    assert ended == {0: "ran", 1: "approval_denied", 2: "ran", 3: "approval_denied"}


@pytest.mark.promise("E-108")
async def test_what_cannot_be_recorded_does_not_run(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    handler, asked = answering(ANNA)
    approvals = Approvals(handler=handler)
    budget = Budget(unit="calls", limit=1)
    guard = ActionGuard([policy(budgets=[budget])], audit=log, approvals=approvals)
    assert approvals.audit is log
    log.close()
    for call in (pay(), pay(name="look"), pay(name="none")):
        with pytest.raises(AuditError):
            async with guard.admit(call, FACTS):
                raise AssertionError("the call ran")

    assert asked == []
    # What the unrecorded calls would have held was given back.
    decision = await guard.decide(pay(name="look"), FACTS)
    assert decision.allowed


WORKER = """
import sys, anyio
from toolcell.core import GuardDeniedError, ToolCall
from toolcell.guard import *

async def main(folder, count):
    approvals = Approvals(ApprovalStore(f"{folder}/state.db"), answered_elsewhere=True)
    policy = AgentPolicy(
        agent_id="a", ask=["pay"], budgets=[Budget(unit="usd", limit="1.00")]
    )
    guard = ActionGuard(
        [policy],
        store=SQLiteStore(f"{folder}/state.db", deadline=60),
        audit=AuditLog(f"{folder}/audit.jsonl"),
        approvals=approvals,
    )
    async def one(amount):
        call = ToolCall(id="c", name="pay", arguments={"sum": amount}, agent_id="a")
        facts = CallFacts(run_id="r", cost={"usd": "0.25"})
        try:
            async with guard.admit(call, facts) as permit:
                await permit.settle({"usd": "0.10"})
                print(amount, "ran", permit.decision.rule, flush=True)
        except GuardDeniedError as error:
            print(amount, "refused", error.message, flush=True)
    async with anyio.create_task_group() as tasks:
        for amount in range(count):
            tasks.start_soon(one, amount)

anyio.run(main, sys.argv[1], int(sys.argv[2]))
"""
ANSWER = """
import sys, anyio
from toolcell.guard import *

async def main(folder, amount, reason):
    with ApprovalStore(f"{folder}/state.db") as store, AuditLog(
        f"{folder}/audit.jsonl"
    ) as log:
        approvals = Approvals(store, audit=log)
        for request in await approvals.pending():
            if request.call.arguments["sum"] == int(amount):
                reply = (
                    Reject(approver="bob", reason=reason)
                    if reason
                    else Approve(approver="anna")
                )
                await approvals.answer(request.id, reply)

anyio.run(main, *sys.argv[1:])
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-I", "-c", PATIENT + script, *map(str, arguments)]
    return Child(command, stdout=subprocess.PIPE, text=True)


async def test_parked_calls_outlive_kill_9_of_the_guard(tmp_path: Path) -> None:
    """Three calls are parked and their process is killed; another answers two of
    them; a new process runs one, refuses one, and waits for the third.

    The record has all that is needed, and who asks again gets the recorded answer.
    """
    with ApprovalStore(tmp_path / "state.db") as store:
        desk = Approvals(store)

        async def parked(count: int) -> None:
            while len(await desk.pending()) != count:
                await anyio.lowlevel.checkpoint()

        first = start(WORKER, tmp_path, 3)
        await parked(3)
        first.send_signal(signal.SIGKILL)
        assert first.communicate()[0] == ""
        assert start(ANSWER, tmp_path, 0, "").communicate()[0] == ""
        assert start(ANSWER, tmp_path, 1, "not this").communicate()[0] == ""

        second = start(WORKER, tmp_path, 3)
        assert second.stdout is not None
        seen = sorted(second.stdout.readline() for _ in range(2))
        assert start(ANSWER, tmp_path, 2, "").communicate()[0] == ""
        seen.append(second.communicate()[0])
        third = start(WORKER, tmp_path, 1)
        await parked(1)
        third.kill()
        assert third.communicate()[0] == ""

    assert seen == [
        "0 ran a.ask[0]\n",
        "1 refused a person refused this call: not this\n",
        "2 ran a.ask[0]\n",
    ]
    report = verify_audit(tmp_path / "audit.jsonl")
    assert report.ok, report
    events = [
        json.loads(line)
        for line in (tmp_path / "audit.jsonl").read_bytes().splitlines()
    ]
    counts = Counter(event["event"] for event in events)
    # Three requests of the first process, and one of the last.
    assert counts["approval_asked"] == 4
    assert (counts["approval_answered"], counts["approval_used"]) == (3, 2)
    assert counts["outcome"] == 2
    outcomes = [event for event in events if event["event"] == "outcome"]
    assert [event["cost"]["usd"] for event in outcomes] == ["0.10", "0.10"]
