"""Requests of before with their answers, by state, page by page."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from toolcell.core import AuditError, InvalidInputError, ToolCall
from toolcell.guard import (
    Approvals,
    ApprovalStore,
    Approve,
    AuditLog,
    CallFacts,
    Decision,
    Reject,
)

pytestmark = pytest.mark.anyio
ASK = Decision("ask", "approval_required")
FACTS = CallFacts(version="1", park=True)


async def asked(approvals: Approvals, number: int, agent: str = "a") -> str:
    call = ToolCall(id=f"{number}", name="pay", arguments={"n": number}, agent_id=agent)
    outcome = await approvals.ask(call, FACTS, ASK, wait_seconds=0)
    assert outcome.approval_id is not None
    return outcome.approval_id


@pytest.mark.parametrize("place", ["memory", "file"])
async def test_requests_are_listed_by_state_and_page(
    tmp_path: Path, place: str
) -> None:
    now = [1_000_000.0]
    path = tmp_path / "approvals.db" if place == "file" else None
    with ApprovalStore(path) as store:
        approvals = Approvals(
            store, answered_elsewhere=True, expiry_seconds=60, clock=lambda: now[0]
        )
        expired = await asked(approvals, 0)
        now[0] += 61
        names = [
            await asked(approvals, number, "ab"[number % 2]) for number in range(1, 6)
        ]
        rejected, approved, used, *waiting = names
        await approvals.answer(rejected, Reject(approver="p", reason="no"))
        for name in (approved, used):
            await approvals.answer(name, Approve(approver="p", arguments={"n": 9}))
        outcome = await approvals.answered(used)
        assert outcome is not None
        assert await approvals.use(outcome)

        states = {
            "waiting": waiting[::-1],
            "approved": [approved],
            "rejected": [rejected],
            "used": [used],
            "expired": [expired],
            None: [*names[::-1], expired],
        }
        for state, wanted in states.items():
            found = await approvals.recent(state=state)  # type: ignore[arg-type]
            assert [each.request.id for each in found] == wanted
            assert state is None or {each.state(now[0]) for each in found} == {state}
        [refused] = await approvals.recent(state="rejected")
        assert (refused.approver, refused.reason) == ("p", "no")
        [edited] = await approvals.recent(state="used")
        assert edited.arguments == {"n": 9}

        first = await approvals.recent(agent_id="b", limit=2)
        rest = await approvals.recent(agent_id="b", before=first[-1].number)
        assert [each.request.id for each in first] == [names[4], names[2]]
        assert [each.request.id for each in rest] == [names[0]]


@pytest.mark.parametrize("place", ["memory", "file"])
async def test_a_request_that_is_ended_waits_no_more(
    tmp_path: Path, place: str
) -> None:
    path = tmp_path / "approvals.db" if place == "file" else None
    log = tmp_path / "audit.jsonl"
    with ApprovalStore(path) as store, AuditLog(log) as audit:
        approvals = Approvals(store, answered_elsewhere=True, audit=audit)
        over, answered, waiting = [await asked(approvals, each) for each in range(3)]
        await approvals.answer(answered, Approve(approver="p"))

        assert await approvals.end(over, reason="nobody needs it")
        assert not await approvals.end(over, reason="twice")
        assert not await approvals.end(answered, reason="late")
        with pytest.raises(InvalidInputError, match="there is no request"):
            await approvals.end("other", reason="unknown")
        with pytest.raises(InvalidInputError, match="is ended: nobody needs it"):
            await approvals.answer(over, Approve(approver="p"))
        assert [*await approvals.waiting()] == [waiting]
        assert await approvals.recent(state="expired") == []
        [ended] = await approvals.recent(state="ended")
        assert (ended.request.id, ended.state(0.0)) == (over, "ended")
        outcome = await approvals.answered(over)
        assert outcome is not None and outcome.status == "unanswered"
        assert await asked(approvals, 0) != over
        with pytest.raises(InvalidInputError, match="waits"):
            await approvals.reveal(over, by="p")
        for reason in ("", "x" * 2_001):
            with pytest.raises(InvalidInputError, match="reason"):
                await approvals.end(waiting, reason=reason)

    told = map(json.loads, log.read_text().splitlines())
    [record] = [each for each in told if each["event"] == "approval_ended"]
    assert (record["approval_id"], record["reason"]) == (over, "nobody needs it")
    assert (record["agent_id"], record["tool"]) == ("a", "pay")


async def test_a_request_ends_at_the_very_moment() -> None:
    """Of a number with 17 digits none is rounded up."""
    now = 1_796_000_000.1234567
    with ApprovalStore() as store:
        approvals = Approvals(store, answered_elsewhere=True, clock=lambda: now)
        request = await asked(approvals, 1)
        assert await approvals.end(request, reason="nobody needs it")

        outcome = await approvals.answered(request)
        assert outcome is not None and outcome.status == "unanswered"
        [ended] = await approvals.recent(state="ended")
        assert ended.request.expires_at == now


async def test_a_call_whose_request_is_ended_goes_on_without_an_answer() -> None:
    with ApprovalStore() as store:
        approvals = Approvals(store, answered_elsewhere=True)
        outcomes = []

        async def ask() -> None:
            call = ToolCall(id="1", name="pay", agent_id="a")
            outcomes.append(await approvals.ask(call, FACTS, ASK, wait_seconds=60))

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                while not (waiting := await approvals.waiting()):
                    await anyio.lowlevel.checkpoint()
                assert await approvals.end(*waiting, reason="nobody needs it")

    [outcome] = outcomes
    assert (outcome.status, outcome.approved) == ("unanswered", False)
    assert outcome.reason == "its request was ended: nobody needs it"
    assert outcome.approval_id is None, "no request stays open"


async def test_no_request_ends_unrecorded(tmp_path: Path) -> None:
    with ApprovalStore() as store, AuditLog(tmp_path / "audit.jsonl") as audit:
        approvals = Approvals(store, answered_elsewhere=True, audit=audit)
        request = await asked(approvals, 1)
        audit.close()
        with pytest.raises(AuditError):
            await approvals.end(request, reason="nobody needs it")
        assert [*await approvals.waiting()] == [request]
