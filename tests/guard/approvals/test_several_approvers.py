"""Calls that several people have to approve: each counts once, and one refusal ends."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import (
    GuardDeniedError,
    PolicyError,
)
from toolcell.guard import (
    ActionGuard,
    AgentPolicy,
    Approve,
    AuditLog,
    AutoApprove,
    CallFacts,
    Grant,
    Reject,
    ShownRequest,
)
from toolcell.guard.spi import Rule

from ...support.concurrent_processes import all_at_once, start
from ...support.guard.builders import FakeClock, call, refusal
from ...support.guard.desk import FACTS, TWO, Desk

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def desk(path: Path) -> Iterator[Desk]:
    made = Desk(path)
    with made.store:
        yield made


async def test_it_runs_once_two_people_have_approved(desk: Desk, path: Path) -> None:
    request = await desk.ask(sum=1)
    await desk.approvals.answer(request, Approve(approver="anna"))
    assert await desk.ask(sum=1) == request
    # The vote outlives the process.
    later = Desk(path)
    with later.store:
        [waiting] = await later.approvals.pending()
        assert (waiting.approvers, waiting.approved_by) == (2, ("anna",))
        assert 'approvers: 2\napproved by: ["anna"]' in ShownRequest(waiting).to_text()
        await later.approvals.answer(request, Approve(approver="berta"))
        found = await later.approvals.find(request)
        assert found is not None
        assert (found.status, found.approved_by) == ("approved", ("anna", "berta"))
        assert await later.ran(sum=1) == {"sum": 1}
        with pytest.raises(GuardDeniedError):
            await later.ran(sum=1)


async def test_a_forecast_knows_who_has_approved(desk: Desk) -> None:
    request = await desk.ask(sum=1)
    told = []
    for name in ("anna", "bob", ""):
        decision = await desk.guard.decide(call("pay", sum=1), FACTS)
        told.append((decision.verdict, decision.approvers))
        if name:
            await desk.approvals.answer(request, Approve(approver=name))

    assert told == [("ask", 2), ("ask", 2), ("allow", 1)]


@pytest.mark.parametrize("name", ["anna", "Anna", " anna.", "ａｎｎａ"])
async def test_the_same_person_counts_once(desk: Desk, name: str) -> None:
    request = await desk.ask()
    await desk.approvals.answer(request, Approve(approver="anna"))

    assert "approved this call already" in await desk.told(
        request, Approve(approver=name)
    )
    [waiting] = await desk.approvals.pending()
    assert waiting.approved_by == ("anna",)


@pytest.mark.parametrize(
    "reply",
    [
        Approve(approver="a"),
        Approve(approver="auto:ci"),
        Approve(approver="berta", grant=Grant()),
        Approve(approver="berta", arguments={"sum": 1}),
    ],
    ids=["agent", "automatic", "grant", "edited"],
)
async def test_other_approvals_do_not_count(desk: Desk, reply: Approve) -> None:
    request = await desk.ask(sum=2)
    await desk.approvals.answer(request, Approve(approver="anna"))
    await desk.told(request, reply)

    found = await desk.approvals.find(request)
    assert found is not None and found.status == "pending"
    assert found.approved_by == ("anna",)


async def test_an_automatic_handler_is_none_of_them(path: Path) -> None:
    auto = AutoApprove(by="ci")
    desk = Desk(path, handler=auto, profile="development")
    with desk.store:
        facts = CallFacts(cost={}, run_id="r", approval_seconds=0.2)
        told = await refusal(desk.guard, call("pay"), facts)
        [waiting] = await desk.approvals.pending()

    assert told["reason"] == "approval_unavailable"
    assert waiting.approved_by == ()


async def test_one_refusal_ends_it(desk: Desk) -> None:
    request = await desk.ask()
    await desk.approvals.answer(request, Approve(approver="anna"))
    await desk.approvals.answer(request, Reject(approver="berta", reason="no"))

    assert "no longer waits" in await desk.told(request, Approve(approver="carl"))
    told = await refusal(desk.guard, call("pay"), FACTS)
    assert (told["reason"], told["detail"]) == (
        "approval_denied",
        "a person refused this call: no",
    )


async def test_too_few_in_time_are_none(path: Path) -> None:
    clock = FakeClock()
    desk = Desk(path, clock=clock, expiry_seconds=10.0)
    with desk.store:
        request = await desk.ask()
        await desk.approvals.answer(request, Approve(approver="anna"))
        clock.now += 10
        assert "no longer waits" in await desk.told(request, Approve(approver="berta"))
        # Whoever approved the old request has not approved the new one.
        assert await desk.ask() != request
        [waiting] = await desk.approvals.pending()
        assert waiting.approved_by == ()


async def test_votes_are_forgotten_with_their_request(path: Path) -> None:
    clock = FakeClock()
    desk = Desk(path, clock=clock)
    with desk.store:
        request = await desk.ask()
        await desk.approvals.answer(request, Approve(approver="anna"))
        clock.now += 40 * 86_400
        await desk.ask()
    with closing(sqlite3.connect(path)) as kept, kept:
        votes = kept.execute("SELECT count(*) FROM approval_votes").fetchall()

    assert votes == [(0,)]


async def test_hidden_parts_are_opened_by_each(desk: Desk) -> None:
    request = await desk.ask(note="token=sk-proj-" + "a1B2" * 8)
    assert "hidden" in await desk.told(request, Approve(approver="anna"))
    opened = await desk.approvals.reveal(request, by="anna")
    seen = ShownRequest(opened, opened=True).digest
    await desk.approvals.answer(request, Approve(approver="anna", seen=seen))
    assert "hidden" in await desk.told(request, Approve(approver="berta"))
    await desk.approvals.answer(request, Approve(approver="berta", seen=seen))

    found = await desk.approvals.find(request)
    assert found is not None and found.status == "approved"


async def test_what_one_person_allowed_is_not_enough_later(desk: Desk) -> None:
    def asking(approvers: int) -> list[AgentPolicy]:
        rule = Rule(tools=["pay"], approvers=approvers)
        return [AgentPolicy(agent_id="a", ask=[rule])]

    desk.guard.replace_policies(asking(1))
    granted, approved = await desk.ask(sum=1), await desk.ask(sum=2)
    await desk.approvals.answer(granted, Approve(approver="anna", grant=Grant()))
    await desk.approvals.answer(approved, Approve(approver="anna"))
    desk.guard.replace_policies(asking(2))

    assert await desk.ask(sum=1) not in (granted, approved)
    assert await desk.ask(sum=2) not in (granted, approved)


async def test_an_edit_does_not_get_around_the_second_person(path: Path) -> None:
    large = Rule(tools=["pay"], when={"sum": {"min": 11}}, approvers=2)
    desk = Desk(path, Rule(tools=["pay"]), large)
    with desk.store:
        request = await desk.ask(sum=1)
        edited = Approve(approver="anna", arguments={"sum": 1_000})
        await desk.approvals.answer(request, edited)
        told = await refusal(desk.guard, call("pay", sum=1), FACTS)

    assert told["reason"] == "approval_denied"
    assert told["detail"] == "2 people have to approve this call"


async def test_an_answer_of_an_older_version_is_not_enough(
    desk: Desk, path: Path
) -> None:
    request = await desk.ask()
    with closing(sqlite3.connect(path)) as older, older:
        older.execute("UPDATE approvals SET status = 'approved', approver = 'anna'")
    told = await refusal(desk.guard, call("pay"), FACTS)

    assert told["detail"] == "2 people have to approve this call"
    found = await desk.approvals.find(request)
    assert found is not None and found.approved_by == ()


async def test_the_rule_that_asks_most_people_counts() -> None:
    rules = [Rule(tools=["pay"]), Rule(tools=["*"], approvers=3, name="all")]
    parent = AgentPolicy(agent_id="p", ask=[Rule(tools=["pay"], approvers=4)])
    child = AgentPolicy(agent_id="c", parent="p", ask=[TWO])
    guard = ActionGuard([AgentPolicy(agent_id="a", ask=rules), parent, child])
    own = await guard.decide(call("pay"))
    inherited = await guard.decide(call("pay", "c"))

    assert (own.rule, own.approvers) == ("all", 3)
    assert (inherited.rule, inherited.approvers) == ("p.ask[0]", 4)
    assert own.to_json()["approvers"] == 3
    assert own.detail == "'pay' needs 3 people's approval"


@pytest.mark.parametrize("kind", ["allow", "deny"])
def test_only_rules_that_ask_have_approvers(kind: str) -> None:
    with pytest.raises(PolicyError, match="approvers"):
        AgentPolicy(agent_id="a", **{kind: [TWO]})


@pytest.mark.parametrize("approvers", [0, 11, 1.5, True, "2"])
def test_a_number_of_approvers_is_one(approvers: Any) -> None:
    with pytest.raises(PolicyError):
        Rule(tools=["pay"], approvers=approvers)


async def test_each_of_them_is_in_the_log(tmp_path: Path, path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    with AuditLog(log) as audit:
        desk = Desk(path, audit=audit)
        with desk.store:
            request = await desk.ask()
            for name in ("anna", "berta"):
                await desk.approvals.answer(request, Approve(approver=name))
    records = [json.loads(line) for line in log.read_text().splitlines()]
    [asked] = [record for record in records if record["event"] == "approval_asked"]
    answers = [
        (
            record["event"],
            record["approver"],
            record["approved_by"],
            record["approvers"],
        )
        for record in records
        if "approved_by" in record
    ]

    assert asked["approvers"] == 2
    assert answers == [
        ("approval_voted", "anna", ["anna"], 2),
        ("approval_answered", "berta", ["anna", "berta"], 2),
    ]


VOTE = """
import sys, anyio
from toolcell.core import InvalidInputError
from toolcell.guard import Approvals, ApprovalStore, Approve

approvals = Approvals(ApprovalStore(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
try:
    anyio.run(approvals.answer, sys.argv[2], Approve(approver=sys.argv[3]))
    print("counted")
except InvalidInputError as error:
    print(error.message)
"""


async def test_processes_count_each_person_once(path: Path) -> None:
    desk = Desk(path, Rule(tools=["pay"], approvers=4))
    with desk.store:
        request = await desk.ask()
        names = ["anna", "Anna", "berta", "berta", "carl", "carl"]
        processes = [start(VOTE, str(path), request, name) for name in names]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        said = await anyio.to_thread.run_sync(all_at_once, processes)
        found = await desk.approvals.find(request)

    assert sorted(said)[3:] == ["counted\n"] * 3
    assert all("approved this call already" in each for each in sorted(said)[:3])
    assert found is not None and found.status == "pending"
    assert sorted(each.lower() for each in found.approved_by) == [
        *("anna", "berta", "carl")
    ]
