"""Questions and approvals of threads are answered where approvals are."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import InvalidInputError, ToolCall
from toolcell.flow import (
    START,
    InterruptHandler,
    NodeContext,
    interrupt,
)
from toolcell.guard import (
    ApprovalRequest,
    Approvals,
    Approve,
    Grant,
    Reject,
)
from toolcell.guard.spi import ApprovalOutcome, ApprovalReply
from toolcell.tools import tool

from ...support.flow.graphs import Log, chain, said
from ...support.flow.office import Office, ask, pay

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise("LC-29 flow-22 flow-26 flow-29 flow-30 flow-41"),
]


def count(state: Log) -> dict[str, Any]:
    return said(f"{interrupt('how many?', answer=int) + 1}")


@pytest.mark.parametrize(
    ("reply", "log"),
    [
        (Approve(approver="anna"), "True"),
        (Approve(approver="anna", arguments={"answer": "later"}), "later"),
        (Reject(approver="anna", reason="no"), "denied: no"),
    ],
)
async def test_a_question_is_answered_among_the_approvals(
    reply: ApprovalReply, log: str, office: Office
) -> None:
    """The reply of another process is what the node goes on with."""
    paused = await office.flow(ask).run({}, "t")
    request = await office.request()
    assert request.call.arguments == {
        "question": {"question": "go on?", "for": 5},
        "node": "ask",
        "thread": "t",
        "interrupt_id": paused.interrupts[0].interrupt_id,
    }
    assert (await office.flow(ask).resume("t")).status == "interrupted"
    await office.answer(reply)
    later = office.flow(ask)
    [done] = await later.recover()

    assert done.unwrap().log == (log,)
    [given] = (await later.history("t"))[0].answers
    assert (given.by, given.how) == ("anna", "approvals")
    assert await office.approvals().pending() == []


async def test_the_agent_does_not_answer_itself(office: Office) -> None:
    flow = office.flow(ask)
    paused = await flow.run({}, "t")
    question = paused.interrupts[0].interrupt_id
    for work in (
        office.answer(Approve(approver="BOT")),
        flow.answer("t", question, 1, by="bot"),
        flow.deny("t", question, by="Bot"),
        flow.resume("t", {question: 1}, by="b.o.t"),
    ):
        with pytest.raises(InvalidInputError, match="may not answer"):
            await work
    assert (await flow.resume("t")).status == "interrupted"


@pytest.mark.promise("R15")
async def test_no_other_agent_answers_either(office: Office) -> None:
    await office.flow(ask).run({}, "t")
    await office.answer(Approve(approver="robot"))
    office.others = ["robot"]

    assert (await office.flow(ask).resume("t")).status == "interrupted"


async def test_a_grant_answers_no_question(office: Office) -> None:
    await office.flow(ask).run({}, "one")
    grant = Grant(seconds=3600, arguments=())
    await office.answer(Approve(approver="anna", grant=grant))
    assert (await office.flow(ask).resume("one")).status == "done"
    paused = await office.flow(ask).run({}, "two")

    assert paused.status == "interrupted"
    assert (await office.flow(ask).resume("two")).status == "interrupted"


@pytest.mark.promise("R15")
async def test_an_answer_that_does_not_fit_is_asked_for_anew(office: Office) -> None:
    await office.flow(count).run({}, "t")
    request = await office.request()
    assert request.call.arguments["answer_schema"] == {"type": "integer"}
    await office.answer(Approve(approver="anna", arguments={"answer": "many"}))
    assert (await office.flow(count).resume("t")).status == "interrupted"
    assert (await office.request()).id != request.id
    await office.answer(Approve(approver="anna", arguments={"answer": 4}))

    assert (await office.flow(count).resume("t")).unwrap().log == ("5",)


async def test_a_request_that_expired_is_opened_anew(office: Office) -> None:
    await office.flow(ask).run({}, "t")
    first = await office.request()
    office.now += 3601
    assert (await office.flow(ask).resume("t")).status == "interrupted"

    assert (await office.request()).id != first.id


async def test_a_question_without_an_agent_is_not_put_there(office: Office) -> None:
    await office.flow(ask, agent_id=None).run({}, "t")

    assert await office.approvals().pending() == []


async def test_the_first_answer_counts_wherever_it_is_given(office: Office) -> None:
    flow = office.flow(ask)
    paused = await flow.run({}, "t")
    request = await office.request()
    await flow.answer("t", paused.interrupts[0].interrupt_id, "mine", by="ben")
    with pytest.raises(InvalidInputError, match="no longer waits"):
        await office.approvals().answer(request.id, Approve(approver="anna"))

    assert (await office.flow(ask).resume("t")).unwrap().log == ("mine",)


async def test_a_call_that_needs_a_person_pauses_the_thread(office: Office) -> None:
    """No process waits; once approved it is made once, in another process."""
    paused = await office.flow(pay).run({}, "t")
    [waiting] = paused.interrupts
    request = await office.request()
    assert (waiting.kind, waiting.request_id) == ("approval", request.id)
    assert (request.call.name, request.call.arguments) == ("pay", {"euros": 30})
    assert (await office.flow(pay).resume("t")).status == "interrupted"
    assert await office.flow(pay).recover() == []
    await office.answer(Approve(approver="anna"))
    [done] = await office.flow(pay).recover()

    assert done.unwrap().log == ("once", "paid 30")
    assert office.paid == [30]
    assert await office.approvals().pending() == []


async def test_a_call_is_refused_or_made_as_the_approver_says(office: Office) -> None:
    await office.flow(pay).run({}, "one")
    await office.answer(Reject(approver="anna", reason="too much"))
    refused = (await office.flow(pay).resume("one")).unwrap().log[1]
    assert "a person refused this call: too much" in refused
    await office.flow(pay).run({}, "two")
    await office.answer(Approve(approver="anna", arguments={"euros": 3}))

    assert (await office.flow(pay).resume("two")).unwrap().log[1] == "paid 3"
    assert office.paid == [3]


async def test_a_policy_that_changed_meanwhile_counts(office: Office) -> None:
    await office.flow(pay).run({}, "t")
    request = await office.request()
    await office.answer(Approve(approver="anna"))
    office.policy = {"deny": ["pay"]}
    refused = (await office.flow(pay).resume("t")).unwrap().log[1]

    assert office.paid == []
    assert "denied" in refused or "deny" in refused or "not" in refused
    answer = await office.approvals().answered(request.id)
    assert answer is not None
    assert await office.approvals().use(answer)


async def test_an_approval_that_expired_is_asked_for_anew(office: Office) -> None:
    flow = office.flow(pay, clock=lambda: _time(office.now))
    await flow.run({}, "t")
    first = await office.request()
    office.now += 3601
    paused = await flow.resume("t")
    assert paused.status == "interrupted"
    second = await office.request()
    assert second.id != first.id
    assert paused.interrupts[0].request_id == second.id
    await office.answer(Approve(approver="anna"))

    assert (await flow.resume("t")).unwrap().log[1] == "paid 30"
    assert office.paid == [30]


async def test_an_approval_that_is_withdrawn_is_asked_for_again(office: Office) -> None:
    await office.flow(pay).run({}, "t")
    request, asked = await office.request(), set[str]()

    class Withdrawing(Approvals):
        """Withdraws an approval of anna's right after a thread has heard of it."""

        async def answered(self, request_id: str) -> ApprovalOutcome | None:
            found = await super().answered(request_id)
            await self.withdraw("anna", by="eva")
            return found

    office.kind = Withdrawing
    for _ in range(2):
        await office.answer(Approve(approver="anna"))
        [waiting] = (await office.flow(pay).resume("t")).interrupts
        asked.add(waiting.interrupt_id)
        assert (waiting.kind, waiting.request_id) == ("approval", request.id)
        assert office.paid == []
    await office.answer(Approve(approver="berta"))

    assert (await office.flow(pay).resume("t")).unwrap().log[1] == "paid 30"
    assert office.paid == [30] and len(asked) == 2


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


async def test_several_calls_of_a_node_are_approved_one_by_one(office: Office) -> None:
    @tool
    async def look() -> str:
        """Look."""
        office.paid.append(0)
        return "saw"

    office.tools.register(look)
    office.policy["allow"] = ["look"]

    async def both(state: Log, ctx: NodeContext) -> dict[str, Any]:
        calls = [
            ToolCall(id="a", name="pay", arguments={"euros": 1}),
            ToolCall(id="b", name="pay", arguments={"euros": 2}),
            ToolCall(id="c", name="look"),
        ]
        results = await ctx.calls(calls)
        return said(*(result.to_text() for result in results))

    paused = await office.flow(both).run({}, "t")
    assert [each.kind for each in paused.interrupts] == ["approval", "approval"]
    assert office.paid == [0]
    first, second = await office.approvals().pending()
    await office.approvals().answer(second.id, Approve(approver="anna"))
    assert (await office.flow(both).resume("t")).status == "interrupted"
    assert office.paid == [0]
    await office.approvals().answer(first.id, Reject(approver="anna", reason="no"))
    done = (await office.flow(both).resume("t")).unwrap()

    assert sorted(office.paid) == [0, _euros(second)]
    assert sum("refused" in text for text in done.log) == 1


def _euros(request: ApprovalRequest) -> int:
    euros = request.call.arguments["euros"]
    assert isinstance(euros, int)
    return euros


async def test_an_approval_is_given_where_approvals_are_alone(office: Office) -> None:
    class Eager(InterruptHandler):
        async def handle(self, question: Any) -> Any:
            raise AssertionError("asked about an approval")

    flow = office.flow(pay, handler=Eager())
    paused = await flow.run({}, "t")
    question = paused.interrupts[0].interrupt_id
    for work in (
        flow.answer("t", question, True, by="anna"),
        flow.deny("t", question, by="anna"),
        flow.resume("t", {question: True}),
    ):
        with pytest.raises(InvalidInputError, match="where approvals are") as caught:
            await work
        assert (await office.request()).id in (caught.value.hint or "")


async def test_a_call_that_was_killed_after_its_approval_is_in_doubt(
    office: Office,
) -> None:
    """The approval that was used up does not make the doubt go away."""

    class Killed(BaseException):
        pass

    async def kill(state: Log, ctx: NodeContext) -> dict[str, Any]:
        return said((await ctx.call("pay", euros=30)).to_text())

    flow = office.flow(kill)
    await flow.run({}, "t")
    await office.answer(Approve(approver="anna"))
    append = office.threads.append

    async def dies(lease: Any, records: Any, head: Any = None) -> None:
        if any(b'"type":"end"' in record for record in records):
            raise Killed
        await append(lease, records, head)

    office.threads.append = dies  # type: ignore[method-assign]
    with pytest.raises(BaseExceptionGroup):
        await office.flow(kill).resume("t")
    office.threads.append = append  # type: ignore[method-assign]
    doubtful = await office.flow(kill).resume("t")

    assert office.paid == [30]
    assert [each.kind for each in doubtful.interrupts] == ["doubt"]
    [request] = await office.approvals().pending()
    await office.approvals().answer(
        request.id,
        Approve(
            approver="anna",
            arguments={"answer": {"outcome": "done", "content": "paid 30"}},
        ),
    )
    done = await office.flow(kill).resume("t")
    assert done.unwrap().log == ("paid 30",)
    assert office.paid == [30]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
@pytest.mark.parametrize("together", [1, 2, 3])
async def test_questions_are_answered_in_any_order_and_grouping(
    order: tuple[int, ...], together: int, office: Office
) -> None:
    """A node runs again only when all of its own questions are answered."""
    ran: list[str] = []

    def asking(name: str) -> Any:
        def node(state: Log) -> dict[str, Any]:
            ran.append(name)
            return said(f"{name}: {interrupt(name)}")

        return node

    async def pays(state: Log, ctx: NodeContext) -> dict[str, Any]:
        ran.append("pays")
        calls = [{"name": "pay", "arguments": {"euros": n}} for n in (1, 2)]
        return said(*(call.to_text() for call in await ctx.calls(calls)))

    graph = chain(pays)
    for name in ("a", "b"):
        graph.node(asking(name), name=name)
        graph.edge(START, name)
    flow = office.of(graph)
    result = await flow.run({}, "t")
    opened = {each.interrupt_id: each for each in result.interrupts}
    assert len(opened) == 4
    left = sorted(opened.values(), key=lambda each: str(each.payload))
    left = [left[place] for place in order]
    while left:
        group, left = left[:together], left[together:]
        for each in group:
            if each.request_id is not None:
                reply = Approve(approver="anna")
                await office.approvals().answer(each.request_id, reply)
            else:
                await flow.answer("t", each.interrupt_id, "yes", by="anna")
        result = await flow.resume("t")
        assert len(result.interrupts) == len(left)

    assert result.unwrap().log == ("paid 1", "paid 2", "a: yes", "b: yes")
    assert sorted(office.paid) == [1, 2]
    assert sorted(ran) == ["a", "a", "b", "b", "pays", "pays"]


async def test_calls_of_a_fork_are_approved_anew(office: Office) -> None:
    flow = office.flow(pay)
    await flow.run({}, "t")
    await office.answer(Approve(approver="anna"))
    assert (await flow.resume("t")).status == "done"
    await flow.fork("t", "0", new_thread_id="fork")
    paused = await flow.resume("fork")

    assert [each.kind for each in paused.interrupts] == ["approval"]
    assert office.paid == [30]
    request = await office.request()
    assert request.call.id.startswith("fork/")
    await office.answer(Approve(approver="anna"))
    assert (await flow.resume("fork")).status == "done"
    assert office.paid == [30, 30]


APPROVER = """
import sys, anyio
from toolcell.guard import Approvals, ApprovalStore, Approve
async def main():
    with ApprovalStore(sys.argv[1]) as store:
        desk = Approvals(store, answered_elsewhere=True)
        [request] = await desk.pending()
        await desk.answer(request.id, Approve(approver="anna"))
anyio.run(main)
"""


async def test_another_process_answers(tmp_path: Path) -> None:
    office = Office(tmp_path)
    office.now = time.time()
    await office.flow(ask).run({}, "t")
    path = str(tmp_path / "approvals.db")
    subprocess.run([sys.executable, "-I", "-c", APPROVER, path], check=True)

    assert (await office.flow(ask).resume("t")).unwrap().log == ("True",)
    office.close()
