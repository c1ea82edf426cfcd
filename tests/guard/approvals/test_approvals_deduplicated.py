"""Equal calls that wait for one answer: who gives up takes it from nobody."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from toolcell.core import ToolCall
from toolcell.guard import (
    ApprovalRequest,
    Approvals,
    ApprovalStore,
    Approve,
    CallFacts,
    Decision,
)
from toolcell.guard.spi import ApprovalOutcome

pytestmark = pytest.mark.anyio

ASKED = Decision(verdict="ask", reason="approval_required")
FACTS = CallFacts(run_id="r")
CALL = ToolCall(id="c", name="pay", agent_id="a")
caller = ContextVar("caller", default="")


class Watched(ApprovalStore):
    """Remembers who has looked for an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.looked: set[str] = set()

    def ended(self, request_ids: Iterable[str], now: float) -> Any:
        self.looked.add(caller.get())
        return super().ended(request_ids, now)

    async def seen(self, name: str) -> None:
        while name not in self.looked:
            await anyio.lowlevel.checkpoint()


class Twins:
    """Calls that wait for one approval; the first question is never answered."""

    def __init__(self, *, answered_elsewhere: bool = False) -> None:
        self.store = Watched()
        self.approvals = Approvals(
            self.store, handler=self._handle, answered_elsewhere=answered_elsewhere
        )
        self.asked = 0
        self.begun = anyio.Event()
        self.answers: dict[str, ApprovalOutcome] = {}
        self.scopes = {name: anyio.CancelScope() for name in ("first", "second")}

    async def _handle(self, _: ApprovalRequest) -> Approve:
        self.asked += 1
        if self.asked == 1:
            self.begun.set()
            await anyio.sleep_forever()
        return Approve(approver="anna")

    async def wait(self, name: str) -> None:
        caller.set(name)
        with self.scopes[name]:
            self.answers[name] = await self.approvals.ask(CALL, FACTS, ASKED)


async def test_a_caller_that_gives_up_leaves_the_question_to_the_others() -> None:
    twins = Twins()
    async with anyio.create_task_group() as tasks:
        for name in twins.scopes:
            tasks.start_soon(twins.wait, name)
            await twins.store.seen(name)
            await twins.begun.wait()
        twins.scopes["first"].cancel()

    assert [*twins.answers] == ["second"]
    assert twins.answers["second"].approved
    assert twins.asked == 2


async def test_what_is_answered_elsewhere_is_not_asked_again() -> None:
    twins = Twins(answered_elsewhere=True)
    async with anyio.create_task_group() as tasks:
        for name in twins.scopes:
            tasks.start_soon(twins.wait, name)
            await twins.store.seen(name)
        [request] = await twins.approvals.pending()
        await twins.approvals.answer(request.id, Approve(approver="bob"))

    said = [answer.approver for answer in twins.answers.values()]
    assert (said, twins.asked) == (["bob", "bob"], 1)


async def test_who_comes_later_asks_anew() -> None:
    asked: list[object] = []

    async def nobody(_: ApprovalRequest) -> None:
        # As a traceback would, it keeps alive what the first call waited for.
        asked.append([*approvals._waits._questions.values()])

    approvals = Approvals(ApprovalStore(), handler=nobody)
    for _ in range(2):
        answer = await approvals.ask(CALL, FACTS, ASKED)
        assert not answer.approved

    assert len(asked) == 2
    assert approvals._waits._questions == {}
