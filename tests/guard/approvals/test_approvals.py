"""Approvals: what a person said holds for this very call, once, and for a time."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import AuditError, ConfigError, InvalidInputError, ToolCall
from toolcell.guard import (
    ApprovalRequest,
    Approvals,
    ApprovalStore,
    Approve,
    AuditLog,
    AutoApprove,
    CallFacts,
    Decision,
    Reject,
    ShownRequest,
    verify_audit,
)
from toolcell.guard.spi import ApprovalOutcome

from ...support.corpora import naughty_strings

pytestmark = pytest.mark.anyio

ASKED = Decision(verdict="ask", reason="approval_required", rule="a.ask[0]")
FACTS = CallFacts(run_id="r", version="1", definition_hash="d" * 64)


def a_call(**changes: Any) -> ToolCall:
    values = {"id": "c1", "name": "pay", "arguments": {"sum": 1}, "agent_id": "a"}
    return ToolCall(**{**values, **changes})


CALL = a_call()


class Desk:
    """A handler that remembers what it was asked and says what it is told to."""

    def __init__(self, *replies: Approve | Reject | Exception | None) -> None:
        self.replies = list(replies)
        self.asked: list[ApprovalRequest] = []

    async def __call__(self, request: ApprovalRequest) -> Approve | Reject | None:
        self.asked.append(request)
        reply = self.replies.pop(0) if self.replies else Approve(approver="anna")
        if isinstance(reply, Exception):
            raise reply
        return reply


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ApprovalStore]:
    path = tmp_path / "state.db" if request.param == "file" else None
    with ApprovalStore(path) as store:
        yield store


def events(path: Path) -> list[dict[str, Any]]:
    assert verify_audit(path).ok
    return [json.loads(line) for line in path.read_bytes().splitlines()]


async def waiting(approvals: Approvals, count: int = 1) -> list[ApprovalRequest]:
    """Return the open requests once there are as many."""
    while len(found := await approvals.pending()) < count:
        await anyio.lowlevel.checkpoint()
    return found


async def test_a_call_waits_for_a_person_who_is_recorded(
    store: ApprovalStore, tmp_path: Path
) -> None:
    desk, path = Desk(), tmp_path / "audit.jsonl"
    with AuditLog(path) as log:
        approvals = Approvals(store, handler=desk, audit=log)
        answer = await approvals.ask(CALL, FACTS, ASKED)
        used = [await approvals.use(answer) for _ in range(3)]
    [request] = desk.asked

    assert (answer.approved, answer.approver, answer.call) == (True, "anna", CALL)
    assert used == [True, False, False]
    assert (request.call, request.run_id, request.rule) == (CALL, "r", "a.ask[0]")
    assert request.expires_at - request.asked_at == 3600
    asked, answered, use = events(path)
    assert (asked["event"], asked["arguments"]) == ("approval_asked", {"sum": 1})
    assert (answered["event"], answered["approver"]) == ("approval_answered", "anna")
    assert (answered["approved"], answered["automatic"]) == (True, False)
    assert (use["event"], use["approval_id"]) == ("approval_used", request.id)


@pytest.mark.parametrize(
    "changes",
    [
        {"agent_id": "b"},
        {"agent_id": "A"},
        {"name": "pay2"},
        {"arguments": {"sum": 2}},
        {"arguments": {"sum": True}},
        {"arguments": {"sum": 1.0}},
        {"arguments": {"sum": "1"}},
        {"arguments": {"sum": 1, "to": None}},
        {"arguments": {}},
        {"version": "2"},
        {"definition_hash": "e" * 64},
        {"run_id": "r2"},
        {"run_id": None},
    ],
    ids=str,
)
@pytest.mark.promise("R17")
async def test_an_approval_is_bound_to_the_very_call(
    store: ApprovalStore, changes: dict[str, Any]
) -> None:
    approvals = Approvals(store, handler=Desk())
    await approvals.ask(CALL, FACTS, ASKED)
    of_facts = {"version", "definition_hash", "run_id"}
    facts = {"run_id": "r", "version": "1", "definition_hash": "d" * 64} | {
        name: value for name, value in changes.items() if name in of_facts
    }
    other = a_call(**{k: v for k, v in changes.items() if k not in of_facts})

    assert (await approvals.peek(CALL, FACTS)).approved
    # A call that is asked for again has a new id of its own.
    assert (await approvals.peek(a_call(id="c2"), FACTS)).approved
    assert (await approvals.peek(other, CallFacts(**facts))).status == "unanswered"


async def test_requests_and_approvals_expire(store: ApprovalStore) -> None:
    clock = Clock()
    approvals = Approvals(
        store, answered_elsewhere=True, expiry_seconds=60, wait_seconds=9, clock=clock
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(approvals.ask, CALL, FACTS, ASKED)
        [late] = await waiting(approvals)
        clock.now += 60
    assert await approvals.pending() == []
    with pytest.raises(InvalidInputError, match="no longer waits"):
        await approvals.answer(late.id, Approve(approver="anna"))

    approvals = Approvals(store, handler=Desk(), expiry_seconds=60, clock=clock)
    answer = await approvals.ask(CALL, FACTS, ASKED)
    clock.now += 60
    assert answer.approved
    assert (await approvals.peek(CALL, FACTS)).status == "unanswered"
    assert await approvals.use(answer) is False


@pytest.mark.parametrize("name", ["a", "A", " a ", "a.", "\uff41", "-a-", "a\u200b"])
@pytest.mark.promise("R17")
async def test_an_agent_cannot_approve_itself(
    store: ApprovalStore, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as log:
        replies: list[Approve | Reject] = [
            Approve(approver=name),
            Reject(approver=name),
        ]
        for run, reply in enumerate(replies):
            approvals = Approvals(store, handler=Desk(reply), audit=log)
            facts = CallFacts(run_id=str(run))
            answer = await approvals.ask(CALL, facts, ASKED)
            [request] = await approvals.pending()
            with pytest.raises(InvalidInputError, match="may not answer"):
                await approvals.answer(request.id, reply)
            await approvals.answer(request.id, Reject(approver="anna"))

            assert answer.status == "unanswered"
    misuse = [event for event in events(path) if event["event"] == "approval_misused"]
    assert [each["approver"] for each in misuse] == [name] * 4


async def test_an_approver_needs_a_name(store: ApprovalStore) -> None:
    approvals = Approvals(store, handler=Desk(None))
    await approvals.ask(CALL, FACTS, ASKED)
    [request] = await approvals.pending()
    for name in ("", " ", "\u200b", "--"):
        with pytest.raises(InvalidInputError, match="needs a name"):
            await approvals.answer(request.id, Approve(approver=name))
    with pytest.raises(InvalidInputError, match="no request"):
        await approvals.answer("none", Approve(approver="anna"))
    with pytest.raises(InvalidInputError, match="2000 characters"):
        await approvals.answer(request.id, Reject(approver="b", reason="x" * 2001))


@pytest.mark.parametrize("reply", [None, ValueError("secret"), Approve(approver="a")])
async def test_a_handler_that_gives_no_answer_is_no_approval(
    store: ApprovalStore,
    reply: Approve | Exception | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = await Approvals(store, handler=Desk(reply)).ask(CALL, FACTS, ASKED)

    assert answer.status == "unanswered"
    assert "nobody has answered" in answer.reason
    assert "secret" not in caplog.text


async def test_a_handler_that_takes_too_long_is_stopped() -> None:
    begun, stopped = anyio.Event(), anyio.Event()

    async def handler(_: ApprovalRequest) -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    while not begun.is_set():
        # The time may be over before it is asked.
        approvals = Approvals(handler=handler, wait_seconds=0.05)
        answer = await approvals.ask(CALL, FACTS, ASKED)
        assert answer.status == "unanswered"
    assert stopped.is_set()


@pytest.mark.promise("RA-06")
async def test_nobody_reachable_is_a_refusal_at_once(store: ApprovalStore) -> None:
    approvals = Approvals(store)
    answer = await approvals.ask(CALL, FACTS, ASKED)

    assert (answer.status, answer.reason) == (
        "unanswered",
        "nobody can be asked for approval",
    )
    assert await approvals.pending() == []


async def test_a_call_that_may_not_wait_asks_nobody(store: ApprovalStore) -> None:
    desk = Desk()
    approvals = Approvals(store, handler=desk)
    answer = await approvals.ask(CALL, FACTS, ASKED, wait_seconds=0)
    assert (answer.status, desk.asked) == ("unanswered", [])

    await approvals.ask(CALL, FACTS, ASKED)
    answer = await approvals.ask(CALL, FACTS, ASKED, wait_seconds=0)
    assert answer.approved
    assert len(desk.asked) == 1


async def test_a_rejection_reaches_the_model_and_is_not_asked_again(
    store: ApprovalStore,
) -> None:
    desk = Desk(Reject(approver="anna", reason="too much money"))
    approvals = Approvals(store, handler=desk)
    answers = [await approvals.ask(CALL, FACTS, ASKED) for _ in range(3)]

    assert len(desk.asked) == 1
    assert {answer.status for answer in answers} == {"rejected"}
    assert {a.reason for a in answers} == {"a person refused this call: too much money"}
    assert not await approvals.use(answers[0])
    # Another run, or another call, is another question.
    assert (await approvals.ask(CALL, CallFacts(run_id="r2"), ASKED)).approved
    assert (await approvals.ask(a_call(arguments={"sum": 2}), FACTS, ASKED)).approved


async def test_several_calls_of_a_batch_are_answered_one_by_one(
    store: ApprovalStore,
) -> None:
    approvals = Approvals(store, answered_elsewhere=True)
    done: dict[int, ApprovalOutcome] = {}
    finished = [anyio.Event() for _ in range(5)]

    async def ask(number: int) -> None:
        call = a_call(id=f"c{number}", arguments={"sum": number})
        done[number] = await approvals.ask(call, FACTS, ASKED)
        finished[number].set()

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(ask, number)
        requests = await waiting(approvals, 5)
        by_sum = {request.call.arguments["sum"]: request for request in requests}
        for number in (3, 0, 4, 1, 2):
            before = set(done)
            reply = Reject(approver="anna") if number % 2 else Approve(approver="bob")
            await approvals.answer(by_sum[number].id, reply)
            await finished[number].wait()
            assert set(done) == before | {number}

    assert [done[n].approved for n in range(5)] == [True, False, True, False, True]
    assert [done[n].call.arguments["sum"] for n in range(5)] == [0, 1, 2, 3, 4]


async def test_a_person_may_change_the_arguments(store: ApprovalStore) -> None:
    desk = Desk(Approve(approver="anna", arguments={"sum": 5}))
    approvals = Approvals(store, handler=desk)
    answer = await approvals.ask(CALL, FACTS, ASKED)

    assert (answer.edited, answer.call.arguments) == (True, {"sum": 5})
    assert answer.call.id == CALL.id
    assert CALL.arguments == {"sum": 1}
    # The approval is of the call that was asked for, not of one that looks the same.
    changed = await approvals.peek(a_call(arguments={"sum": 5}), FACTS)
    assert changed.status == "unanswered"
    assert await approvals.use(answer)


async def test_arguments_that_are_not_json_are_refused(store: ApprovalStore) -> None:
    approvals = Approvals(store, handler=Desk(None))
    await approvals.ask(CALL, FACTS, ASKED)
    [request] = await approvals.pending()
    for wrong in ({"sum": float("nan")}, {"sum": object()}, "{", "[1]"):
        with pytest.raises(InvalidInputError):
            await approvals.answer(request.id, Approve(approver="b", arguments=wrong))  # type: ignore[arg-type]
    assert [each.id for each in await approvals.pending()] == [request.id]


async def test_twins_share_one_question_and_not_the_approval(
    store: ApprovalStore,
) -> None:
    approvals = Approvals(store, answered_elsewhere=True)
    answers: list[ApprovalOutcome] = []
    used: list[bool] = []

    async def ask(number: int) -> None:
        answers.append(await approvals.ask(a_call(id=f"c{number}"), FACTS, ASKED))

    async def use(answer: ApprovalOutcome) -> None:
        used.append(await approvals.use(answer))

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(ask, number)
        [request] = await waiting(approvals)
        await approvals.answer(request.id, Approve(approver="anna"))
    assert [answer.approved for answer in answers] == [True] * 10
    async with anyio.create_task_group() as tasks:
        for answer in answers:
            tasks.start_soon(use, answer)

    assert sorted(used) == [False] * 9 + [True]


@pytest.mark.promise("R17")
async def test_an_answer_is_given_once(store: ApprovalStore) -> None:
    approvals = Approvals(store, handler=Desk(None))
    await approvals.ask(CALL, FACTS, ASKED)
    [request] = await approvals.pending()
    outcomes: list[str] = []

    async def reply(name: str) -> None:
        try:
            await approvals.answer(request.id, Reject(approver=name))
            outcomes.append(name)
        except InvalidInputError:
            outcomes.append("too late")

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(reply, f"person {number}")
    assert outcomes.count("too late") == 7


async def test_an_agent_cannot_bury_people_in_requests(store: ApprovalStore) -> None:
    approvals = Approvals(store, handler=Desk(*[None] * 9), max_pending=3)
    reasons = []
    for number in range(5):
        call = a_call(arguments={"sum": number})
        reasons.append((await approvals.ask(call, FACTS, ASKED)).reason)

    assert len(await approvals.pending()) == 3
    assert reasons[3:] == ["too many calls of this agent wait for approval"] * 2
    other = a_call(agent_id="b")
    assert "nobody has answered" in (await approvals.ask(other, FACTS, ASKED)).reason


async def test_what_cannot_be_recorded_does_not_happen(
    store: ApprovalStore, tmp_path: Path
) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    approvals = Approvals(store, handler=Desk(None), audit=log)
    answer = await approvals.ask(CALL, FACTS, ASKED)
    [request] = await approvals.pending()
    log.close()
    for reply in (Approve(approver="anna"), Reject(approver="anna")):
        with pytest.raises(AuditError):
            await approvals.answer(request.id, reply)
    with pytest.raises(AuditError):
        await approvals.ask(a_call(arguments={}), FACTS, ASKED)
    assert [each.id for each in await approvals.pending()] == [request.id]

    approvals.audit = None
    await approvals.answer(request.id, Approve(approver="anna"))
    answer = await approvals.peek(CALL, FACTS)
    approvals.audit = log
    with pytest.raises(AuditError):
        await approvals.use(answer)
    approvals.audit = None
    assert await approvals.use(answer)


@pytest.mark.promise("A-18")
async def test_an_auto_approval_is_named_and_logged(
    store: ApprovalStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for profile in ({}, {"profile": "production"}):
        with pytest.raises(ConfigError, match="AutoApprove is refused"):
            Approvals(store, handler=AutoApprove(by="ci"), **profile)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="needs a name"):
        AutoApprove(by="")
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as log, caplog.at_level(logging.WARNING):
        approvals = Approvals(
            store, handler=AutoApprove(by="ci"), profile="development", audit=log
        )
        answer = await approvals.ask(CALL, FACTS, ASKED)

        assert (answer.approved, answer.approver) == (True, "auto:ci")
        # A production process on the same store does not take it for an approval.
        assert await Approvals(store).use(answer) is False
        assert await approvals.use(answer) is True
    assert "without a person, by 'ci'" in caplog.text
    assert [event.get("automatic") for event in events(path)] == [None, True, None]


@pytest.mark.parametrize("name", ["auto:ci", "AUTO:x", " auto:x", "\uff41uto:x"])
async def test_nobody_can_pose_as_an_auto_approval(
    store: ApprovalStore, name: str
) -> None:
    desk = Desk(Approve(approver=name))
    approvals = Approvals(store, handler=desk, profile="development")

    assert (await approvals.ask(CALL, FACTS, ASKED)).status == "unanswered"


@pytest.mark.promise("E-78", "E-106")
@pytest.mark.corpus
def test_what_a_person_is_shown_cannot_act_on_a_terminal() -> None:
    texts = [*naughty_strings(), "\x1b[2J\r", "\u202e", "\x7f\x9b", "a\nrule: none"]
    for text in texts:
        request = ApprovalRequest(
            id="i",
            call=a_call(id="c", name=text[:200] or "x", arguments={text: text}),
            run_id=text,
            version=text,
            definition_hash="",
            tags=frozenset(),
            rule=text,
            asked_at=0,
            expires_at=3600,
        )
        shown = ShownRequest(request).to_text()

        assert shown.isascii()
        lines = shown.split("\n")
        hidden = ["hidden"] if ShownRequest(request).hidden else []
        assert [line.partition(":")[0] for line in lines] == [
            *("request", "agent", "run", "tool", "arguments", "rule", "expires"),
            *hidden,
            "seen",
        ]
        assert all(line.isprintable() for line in lines)
        assert lines[6] == "expires: 1970-01-01 01:00:00 UTC"
