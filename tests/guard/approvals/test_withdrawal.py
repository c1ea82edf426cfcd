"""What a person has approved is taken back: nothing of it counts, and nothing else."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import (
    AuditError,
    GuardDeniedError,
    InvalidInputError,
    StoreUnavailableError,
)
from toolcell.guard import ApprovalStore, Approve, AuditLog, Grant, Reject
from toolcell.guard.spi import Rule, Withdrawn

from ...conftest import run_apart
from ...support.concurrent_processes import all_at_once, start
from ...support.guard.builders import FakeClock, in_threads
from ...support.guard.desk import Desk

pytestmark = pytest.mark.anyio
ONE = Rule(tools=["pay"])
ANNA = Approve(approver="anna")
BERTA = Approve(approver="berta")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture(params=["file", "memory"])
def place(request: pytest.FixtureRequest, path: Path) -> Path | None:
    """The store's file; None: it is in memory."""
    return path if request.param == "file" else None


@contextmanager
def opened(path: Path | None, *rules: Rule, **options: Any) -> Iterator[Desk]:
    desk = Desk(path, *rules, **options)
    with desk.store:
        yield desk


def records(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize("name", ["anna", "Anna", " anna.", "ａｎｎａ"])
async def test_a_vote_counts_no_longer(place: Path | None, name: str) -> None:
    with opened(place) as desk:
        request = await desk.ask()
        for reply in (ANNA, BERTA):
            await desk.approvals.answer(request, reply)
            if reply is ANNA:
                told = await desk.approvals.withdraw(name, by="eva")
        assert told == Withdrawn(requests=(request,))
        assert await desk.state(request) == ("pending", ("berta",))
        # Whoever may answer again, by that name, may approve it anew.
        await desk.approvals.answer(request, ANNA)
        assert await desk.state(request) == ("approved", ("berta", "anna"))


async def test_an_approval_that_was_not_used_waits_again(place: Path | None) -> None:
    with opened(place, ONE) as desk:
        plain, edited = await desk.ask(sum=1), await desk.ask(sum=2)
        await desk.approvals.answer(plain, ANNA)
        await desk.approvals.answer(
            edited, Approve(approver="anna", arguments={"sum": 9})
        )
        told = await desk.approvals.withdraw("anna", by="eva")
        waiting = [each.id for each in await desk.approvals.pending()]
        answers = [await desk.approvals.find(each) for each in waiting]
        again = [await desk.ask(sum=1), await desk.ask(sum=2)]
        await desk.approvals.answer(edited, BERTA)
        assert await desk.ran(sum=2) == {"sum": 2}

    assert told == Withdrawn(requests=(plain, edited))
    assert waiting == again == [plain, edited]
    # Nothing of the answers is left.
    assert {answer and answer[1:5] for answer in answers} == {
        ("pending", None, None, None)
    }


async def test_of_several_the_others_still_count(place: Path | None) -> None:
    with opened(place, Rule(tools=["pay"], approvers=3)) as desk:
        request = await desk.ask()
        for name in ("carl", "anna", "berta"):
            await desk.approvals.answer(request, Approve(approver=name))
        await desk.approvals.withdraw("anna", by="eva")
        assert await desk.state(request) == ("pending", ("carl", "berta"))
        assert await desk.ask() == request
        await desk.approvals.answer(request, Approve(approver="dora"))
        await desk.ran()


async def test_grants_end(place: Path | None) -> None:
    with opened(place, ONE) as desk:
        for number, name in enumerate(("anna", "berta")):
            request = await desk.ask(sum=number)
            grant = Approve(approver=name, grant=Grant())
            await desk.approvals.answer(request, grant)
            await desk.ran(sum=number)
        [first, second] = await desk.approvals.grants()
        told = await desk.approvals.withdraw("Anna", by="eva")
        assert await desk.approvals.grants() == [second]
        await desk.ran(sum=1)
        await desk.ask(sum=0)

    # The approval with which the grant came is used up already.
    assert told.grants == (first.id,) and first.approver == "anna"


async def test_what_is_over_stays(place: Path | None) -> None:
    clock = FakeClock()
    with opened(place, ONE, clock=clock, expiry_seconds=10.0) as desk:
        used, refused, late = [await desk.ask(sum=number) for number in range(3)]
        await desk.approvals.answer(used, ANNA)
        await desk.approvals.answer(refused, Reject(approver="anna", reason="no"))
        await desk.ran(sum=0)
        told = [await desk.approvals.withdraw("anna", by="eva")]
        await desk.approvals.answer(late, ANNA)
        clock.now += 10
        told.append(await desk.approvals.withdraw("anna", by="eva"))
        states = [await desk.state(each) for each in (used, refused, late)]

    assert told == [Withdrawn()] * 2
    assert states == [("used", ("anna",)), ("rejected", ()), ("approved", ("anna",))]


async def test_what_agents_keep_stays(place: Path | None) -> None:
    with opened(place, ONE, agents=("a", "b")) as desk:
        requests = [await desk.ask(agent) for agent in ("a", "b")]
        grant = Approve(approver="anna", grant=Grant(arguments=()))
        for request in requests:
            await desk.approvals.answer(request, grant)
        told = await desk.approvals.withdraw("anna", by="eva", keep_agents=["b"])
        [kept] = await desk.approvals.grants()
        await desk.ask("a")
        await desk.ran("b")

    assert told.requests == (requests[0],) and len(told.grants) == 1
    assert kept.agent_id == "b"


@pytest.mark.parametrize("name", ["", " ", "-"])
async def test_nobody_has_approved_nothing(place: Path | None, name: str) -> None:
    with opened(place) as desk:
        await desk.ask()
        with pytest.raises(InvalidInputError):
            await desk.approvals.withdraw(name, by="eva")


async def test_one_record_says_it_all(tmp_path: Path, path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    with AuditLog(log) as audit, opened(path, ONE, audit=audit) as desk:
        requests = [await desk.ask(sum=number) for number in range(2)]
        await desk.approvals.answer(requests[0], ANNA)
        grant = Approve(approver="anna", grant=Grant())
        await desk.approvals.answer(requests[1], grant)
        [granted] = await desk.approvals.grants()
        for _ in range(2):
            await desk.approvals.withdraw("anna", by="eva", keep_agents=["b"])
    [record] = [each for each in records(log) if each["event"] == "approvals_withdrawn"]

    assert record["person"] == "anna" and record["by"] == "eva"
    assert (record["approvals"], record["grants"]) == (requests, [granted.id])
    assert record["kept_agents"] == ["b"]


async def test_nothing_is_withdrawn_unrecorded(tmp_path: Path, path: Path) -> None:
    with (
        AuditLog(tmp_path / "audit.jsonl") as audit,
        opened(path, audit=audit) as desk,
    ):
        request = await desk.ask()
        await desk.approvals.answer(request, ANNA)
        audit.close()
        with pytest.raises(AuditError):
            await desk.approvals.withdraw("anna", by="eva")
        assert await desk.state(request) == ("pending", ("anna",))


async def test_an_answer_is_stored_within_what_allows_it(place: Path | None) -> None:
    @contextmanager
    def refusing() -> Iterator[None]:
        raise InvalidInputError("you may not", hint="ask")
        yield

    seen: list[tuple[str, ...]] = []
    with opened(place, ONE) as desk:
        request = await desk.ask()

        @contextmanager
        def allowing() -> Iterator[None]:
            for _ in range(2):
                found = desk.store.get(request)
                assert found is not None
                seen.append(found.approved_by)
                if len(seen) == 1:
                    yield

        with pytest.raises(InvalidInputError, match="you may not"):
            await desk.approvals.answer(request, ANNA, within=refusing())
        assert await desk.state(request) == ("pending", ())
        await desk.approvals.answer(request, ANNA, within=allowing())

    # It is stored when it is left.
    assert seen == [(), ("anna",)]


async def test_no_grant_ends_while_its_use_is_recorded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcell.guard.approvals.store.BUSY_SECONDS", 0.05)
    with opened(path, ONE) as desk, ApprovalStore(path) as other:
        request = await desk.ask()
        await desk.approvals.answer(
            request, Approve(approver="anna", grant=Grant(arguments=()))
        )
        [grant] = await desk.approvals.grants()

        def record() -> None:
            with pytest.raises(StoreUnavailableError):
                other.withdraw("anna", 0.0, (), lambda _: None)

        assert desk.store.use_grant(grant.id, grant.expires_at - 1, record)
        assert other.withdraw("anna", 0.0, (), lambda _: None).grants == (grant.id,)
        assert not desk.store.use_grant(grant.id, grant.expires_at - 1, record)


@pytest.mark.parametrize("grant", [None, Grant()], ids=["approval", "grant"])
def test_a_use_or_the_withdrawal_comes_first(
    tmp_path: Path, path: Path, grant: Grant | None
) -> None:
    log = tmp_path / "audit.jsonl"
    with AuditLog(log) as audit, opened(path, ONE, audit=audit) as desk:
        for number in range(20):
            ran, withdrawn = run_apart(approved, desk, number, grant), Withdrawn()

            async def act(which: int, number: int = number) -> None:
                nonlocal ran, withdrawn
                if which:
                    withdrawn = await desk.approvals.withdraw("anna", by="eva")
                else:
                    with suppress(GuardDeniedError):
                        await desk.ran(sum=number)
                        ran = True

            in_threads(2, act)
            # A grant is there for more than one call, so both may come to pass.
            assert ran != bool(withdrawn.requests) or grant is not None

    assert used_after_the_end(records(log)) == []


async def approved(desk: Desk, number: int, grant: Grant | None) -> bool:
    """Have a call approved that has not run."""
    request = await desk.ask(sum=number)
    await desk.approvals.answer(request, Approve(approver="anna", grant=grant))
    return False


def used_after_the_end(told: list[dict[str, Any]]) -> list[str]:
    """Return the approvals and grants that were used after they were withdrawn."""
    ended, found = set[str](), list[str]()
    for record in told:
        if record["event"] == "approvals_withdrawn":
            ended.update(record["approvals"], record["grants"])
        elif record["event"] == "approval_used":
            used = record["grant_id"] or record["approval_id"]
            found += [used] if used in ended else []
    return found


WITHDRAW = """
import sys, anyio
from toolcell.guard import Approvals, ApprovalStore

approvals = Approvals(ApprovalStore(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
async def main():
    return await approvals.withdraw(sys.argv[2], by="eva")
print(len(anyio.run(main).requests))
"""


async def test_processes_withdraw_once(path: Path) -> None:
    with opened(path) as desk:
        requests = [await desk.ask(sum=number) for number in range(3)]
        for request in requests:
            await desk.approvals.answer(request, ANNA)
        processes = [start(WITHDRAW, str(path), name) for name in ("anna", "Anna")]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        told = await anyio.to_thread.run_sync(all_at_once, processes)
        states = [await desk.state(request) for request in requests]

    assert sorted(told) == ["0\n", "3\n"]
    assert states == [("pending", ())] * 3


DIE = """
import os, signal, sys, anyio
from toolcell.guard import Approvals, ApprovalStore, AuditLog

class Deadly(AuditLog):
    def append(self, event, /, **fields):
        super().append(event, **fields)
        os.kill(os.getpid(), signal.SIGKILL)

audit = Deadly(sys.argv[2])
approvals = Approvals(ApprovalStore(sys.argv[1]), audit=audit)
sys.stdin.readline()
async def main():
    await approvals.withdraw("anna", by="eva")
anyio.run(main)
"""


async def test_a_process_that_dies_withdraws_all_or_nothing(
    tmp_path: Path, path: Path
) -> None:
    with opened(path, ONE) as desk:
        waiting = await desk.ask(sum=1)
        grant = Approve(approver="anna", grant=Grant())
        await desk.approvals.answer(waiting, grant)
        process = start(DIE, str(path), str(tmp_path / "audit.jsonl"))
        await anyio.to_thread.run_sync(all_at_once, [process])
        assert await desk.state(waiting) == ("approved", ("anna",))
        assert len(await desk.approvals.grants()) == 1
        told = await desk.approvals.withdraw("anna", by="eva")

    assert process.returncode == -signal.SIGKILL
    assert (told.requests, len(told.grants)) == ((waiting,), 1)
