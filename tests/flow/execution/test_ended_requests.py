"""What ends a question elsewhere takes it from the approvals."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from toolcell.core import StoreUnavailableError
from toolcell.flow import START, InterruptHandler, MemoryCheckpointer, interrupt
from toolcell.guard import Approvals, Approve

from ...support.flow.graphs import Log, chain, said
from ...support.flow.office import Office, ask, pay

pytestmark = [pytest.mark.anyio, pytest.mark.promise("flow-29")]


@pytest.mark.parametrize("how", ["answer", "deny", "resume", "expiry"])
async def test_a_question_that_is_answered_elsewhere_is_asked_no_more(
    how: str, office: Office
) -> None:
    """The other question of the step stays."""

    def short(state: Log) -> dict[str, Any]:
        return said(str(interrupt("now?", expires_seconds=60)))

    graph = chain(ask)
    graph.node(short)
    graph.edge(START, "short")
    flow = office.of(graph, clock=lambda: datetime.fromtimestamp(office.now, UTC))
    paused = await flow.run({}, "t")
    assert len(await office.approvals().pending()) == 2
    [question] = [i.interrupt_id for i in paused.interrupts if i.node_id == "short"]
    match how:
        case "answer":
            await flow.answer("t", question, "yes", by="ben")
        case "deny":
            await flow.deny("t", question, by="ben")
        case "resume":
            await flow.resume("t", {question: "yes"}, by="ben")
        case _:
            office.now += 61
            await flow.resume("t")

    assert (await office.request()).call.arguments["node"] == "ask"
    await office.answer(Approve(approver="anna"))
    await flow.resume("t")
    assert await office.approvals().pending() == []


async def test_a_question_that_a_handler_answers_is_asked_no_more(
    office: Office,
) -> None:
    class Late(InterruptHandler):
        async def handle(self, question: Any) -> Any:
            return "mine"

    await office.flow(ask).run({}, "t")
    await office.request()

    assert (await office.flow(ask, handler=Late()).resume("t")).status == "done"
    assert await office.approvals().pending() == []


async def test_a_question_answered_while_its_owner_waits_is_asked_once(
    office: Office,
) -> None:
    looked: set[str] = set()

    async def note(place: str) -> None:
        """Answer once the owner has looked at both places, and waits."""
        looked.add(place)
        if looked == {"approvals", "store"}:
            looked.add("answered")
            flow = office.flow(ask)
            [state] = await flow.interrupts("t")
            await flow.answer("t", state.interrupt.interrupt_id, "yes", by="ben")

    class Watched(Approvals):
        async def put(self, call: Any, facts: Any) -> Any:
            outcome = await super().put(call, facts)
            await note("approvals")
            return outcome

    class Store(MemoryCheckpointer):
        async def answers(self, thread_id: str) -> Sequence[bytes]:
            found = await super().answers(thread_id)
            await note("store")
            return found

    office.kind, office.threads = Watched, Store()
    done = await office.flow(ask).run({}, "t", wait_seconds=60)

    assert done.unwrap().log == ("yes",)
    assert len(await office.approvals().recent()) == 1


async def test_a_thread_that_is_cancelled_asks_no_more(office: Office) -> None:
    """Neither its question nor its call; those of another thread stay."""
    graph = chain(ask)
    graph.node(pay)
    graph.edge(START, "pay")
    flow = office.of(graph)
    for thread in ("t", "other"):
        await flow.run({}, thread)
    assert len(await office.approvals().pending()) == 4
    await flow.cancel("t", by="ben")

    left = await office.approvals().pending()
    assert [request.run_id for request in left] == ["other:1"] * 2


async def test_a_thread_that_is_cancelled_before_its_turn_asks_no_more(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`recover` had listed it before."""

    async def listed(*_: object) -> list[str]:
        return ["t"]

    monkeypatch.setattr("toolcell.flow.flow.threads_to_look_at", listed)
    flow = office.flow(ask)
    await flow.run({}, "t")
    await flow.cancel("t", by="ben")

    assert await flow.recover() == []
    assert await office.approvals().pending() == []


async def test_a_thread_that_is_cancelled_again_leaves_no_request(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first who cancelled it died before its request ended."""

    async def died(*_: object) -> None:
        raise KeyboardInterrupt

    flow = office.flow(ask)
    await flow.run({}, "t")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("toolcell.flow.control.cancelling.end_requests", died)
        await flow.cancel("t", by="ben")
    await office.request()
    await flow.cancel("t", by="ben")

    assert await office.approvals().pending() == []


async def test_a_request_that_cannot_be_ended_does_not_keep_the_answer(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Approvals):
        async def end(self, request_id: str, *, reason: str) -> bool:
            raise StoreUnavailableError("gone")

    office.kind = Failing
    flow = office.flow(ask)
    paused = await flow.run({}, "t")
    await flow.answer("t", paused.interrupts[0].interrupt_id, "mine", by="ben")

    assert "stays among the approvals: gone" in caplog.text
    assert (await flow.resume("t")).unwrap().log == ("mine",)
