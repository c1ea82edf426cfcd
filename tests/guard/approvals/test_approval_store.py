"""Where approvals are kept: failures are told apart, files are private."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import get_args

import anyio
import pytest

from toolcell.core import ConfigError, StoreUnavailableError, ToolCall
from toolcell.guard import (
    ApprovalRequest,
    Approvals,
    ApprovalStore,
    Approve,
    CallFacts,
    Decision,
)
from toolcell.guard.approvals.records import ApprovalState
from toolcell.guard.spi import ApprovalOutcome

from ...conftest import run_apart

pytestmark = pytest.mark.anyio

ASKED = Decision(verdict="ask", reason="approval_required")
FACTS = CallFacts(run_id="r")
CALL = ToolCall(id="c", name="pay", agent_id="a")
REQUEST = ApprovalRequest(
    id="r",
    call=CALL,
    run_id="r",
    version="1",
    definition_hash="",
    tags=frozenset(),
    rule="ask",
    asked_at=0.0,
    expires_at=60.0,
)


async def yes(_: ApprovalRequest) -> Approve:
    return Approve(approver="anna")


async def test_a_store_that_does_not_answer_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcell.guard.approvals.store.BUSY_SECONDS", 0.05)
    path = tmp_path / "state.db"
    with ApprovalStore(path) as store:
        approvals = Approvals(store, handler=yes)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError):
            await approvals.ask(CALL, FACTS, ASKED)
        other.execute("ROLLBACK")
        other.close()
        assert (await approvals.ask(CALL, FACTS, ASKED)).approved
    with pytest.raises(StoreUnavailableError):
        await approvals.peek(CALL, FACTS)


async def test_a_store_that_fails_while_a_call_waits_is_told_apart() -> None:
    store = ApprovalStore()

    async def handler(_: ApprovalRequest) -> None:
        store.close()

    with pytest.raises(StoreUnavailableError):
        await Approvals(store, handler=handler).ask(CALL, FACTS, ASKED)


def test_closing_waits_for_the_thread_at_work(tmp_path: Path) -> None:
    store = ApprovalStore(tmp_path / "state.db")
    inside, go_on = threading.Event(), threading.Event()

    def record() -> None:
        inside.set()
        assert go_on.wait(60)

    with ThreadPoolExecutor(2) as threads:
        opening = threads.submit(store.open, REQUEST, max_pending=1, record=record)
        assert inside.wait(60)
        closing = threads.submit(store.close)
        waited = wait([closing], 0.2)
        go_on.set()
        assert opening.result() is not None

    assert waited.not_done == {closing}


def test_a_file_of_approvals_is_private(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    ApprovalStore(path).close()
    link = tmp_path / "link"
    link.symlink_to(path)

    assert path.stat().st_mode & 0o777 == 0o600
    for wrong in (link, tmp_path, tmp_path / "none" / "state.db"):
        with pytest.raises(ConfigError, match="cannot be opened"):
            ApprovalStore(wrong)
    for limits in ({"wait_seconds": -1}, {"expiry_seconds": 0}, {"max_pending": 0}):
        with pytest.raises(ConfigError, match="out of range"):
            Approvals(**limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_threads_with_loops_of_their_own_share_approvals(
    tmp_path: Path, backend: str
) -> None:
    store = ApprovalStore(tmp_path / "state.db")
    approvals = Approvals(store, answered_elsewhere=True)
    answers: list[ApprovalOutcome] = []

    def ask(number: int) -> None:
        call = ToolCall(id="c", name="pay", agent_id=f"agent {number}")
        answers.append(anyio.run(approvals.ask, call, FACTS, ASKED, backend=backend))

    async def reply() -> None:
        while len(requests := await approvals.pending()) < 3:
            await anyio.lowlevel.checkpoint()
        for request in requests:
            await approvals.answer(request.id, Approve(approver="anna"))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    run_apart(reply, backend=backend)
    for thread in threads:
        thread.join()

    store.close()
    assert [answer.approved for answer in answers] == [True] * 3


def test_an_answer_never_leaves_out_whether_arguments_were_edited() -> None:
    with ApprovalStore() as store, pytest.raises(TypeError, match="'arguments'"):
        store.answer("r", "approved", now=0.0, approver="anna", record=list)  # type: ignore[call-arg]


def ask_and_use(store: ApprovalStore, number: int, now: float) -> None:
    request = replace(
        REQUEST,
        id=f"r{number}",
        call=ToolCall(id="c", name=f"pay{number}", agent_id="a"),
        asked_at=now,
        expires_at=now + 60,
    )
    store.open(request, max_pending=1, record=list)
    store.answer(
        request.id, "approved", now=now, approver="anna", arguments=None, record=list
    )
    assert store.use(request.id, now, list)


def look(store: ApprovalStore, now: float) -> None:
    store.pending(now)
    store.waiting(now)
    store.count_waited_for(now)
    for state in get_args(ApprovalState):
        store.recent(now, state=state, limit=5)


def test_requests_that_are_over_cost_later_ones_nothing() -> None:
    store, counted = ApprovalStore(), count()
    for number in range(10):
        ask_and_use(store, number, now=number)
    store._db.set_progress_handler(lambda: bool(next(counted) < 0), 10)
    taken = []
    for number in (10, 500):
        before = next(counted)
        ask_and_use(store, number, now=number)
        look(store, number)
        taken.append(next(counted) - before)
        for old in range(number + 1, 500):
            ask_and_use(store, old, now=old)

    assert taken[1] < 1.5 * taken[0]
