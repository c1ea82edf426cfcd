"""Questions: asked once, answered once, each by its own place."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync

from toolcell.core import InterruptDeniedError, InvalidInputError
from toolcell.flow import START, Flow, Graph, MemoryCheckpointer, NodeContext, interrupt
from toolcell.flow.spi import (
    GraphInterrupted,
    InterruptException,
    InterruptState,
    InterruptValue,
    resume_with,
)
from toolcell.tools import tool

from ...support.flow.graphs import Log, flow, only, said
from ...support.sample_tools import executor

pytestmark = pytest.mark.anyio


@pytest.mark.promise("LC-28", "LC-29", "flow-24")
async def test_a_thread_pauses_and_goes_on_with_the_answer() -> None:
    """The reference's cycle: it is caught, kept and handed out; then answered."""

    def ask(state: Log) -> dict[str, Any]:
        return said(interrupt({"question": "who?"}, ticket=7))

    store = MemoryCheckpointer()
    paused = await flow(ask, checkpointer=store).run({}, "t")
    question = only(paused)
    done = await flow(ask, checkpointer=store).resume("t", {question.interrupt_id: "x"})

    assert (question.payload, question.metadata) == (
        {"question": "who?"},
        {"ticket": 7},
    )
    assert (question.node_id, question.graph_id) == ("ask", "chain")
    assert (question.thread_id, question.task_id) == ("t", "1.0")
    assert done.unwrap().log == ("x",)


@pytest.mark.promise("LC-28", "RL-15", "flow-21")
async def test_each_question_of_a_node_gets_its_own_answer() -> None:
    """Three in one node, one of them in a loop that asks until it gets a number."""
    runs: list[int] = []

    async def ask(state: Log) -> dict[str, Any]:
        runs.append(1)
        name = interrupt("name?")
        while not isinstance(age := interrupt("age?"), int):
            pass
        return said(name, str(age), interrupt("town?"))

    asks = flow(ask)
    result = await asks.run({}, "t")
    for answer in ("Anna", "old", 30, "Ulm"):
        question = only(result)
        result = await asks.resume("t", {question.interrupt_id: answer})

    assert result.unwrap().log == ("Anna", "30", "Ulm")
    assert len(runs) == 5


@pytest.mark.promise("LC-28", "LC-32", "flow-22", "flow-33")
async def test_parallel_questions_are_open_at_once_and_apart() -> None:
    graph = Graph(Log, name="g")
    ran: list[str] = []
    for name in ("a", "b", "c"):

        def node(state: Log, ctx: NodeContext, name: str = name) -> dict[str, Any]:
            ran.append(name)
            return said(name if name == "b" else interrupt("same?"))

        graph.node(node, name=name)
        graph.edge(START, name)
    asks = Flow(graph)
    paused = await asks.run({}, "t")
    first, second = paused.waiting

    assert first.interrupt.interrupt_id != second.interrupt.interrupt_id
    assert [first.node_id, second.node_id] == ["a", "c"]
    assert first.pending_nodes == ["a", "c"]
    assert first.partial_results == {"1.1": {"log": ["b"]}}
    half = await asks.resume("t", {second.interrupt.interrupt_id: "C"})
    assert only(half).node_id == "a"
    done = await asks.resume("t", {first.interrupt.interrupt_id: "A"})
    assert done.unwrap().log == ("A", "b", "C")
    # Each asking node ran twice; the other one once.
    assert sorted(ran) == ["a", "a", "b", "c", "c"]


@pytest.mark.promise("RL-17")
async def test_none_and_false_are_answers() -> None:
    def ask(state: Log) -> dict[str, Any]:
        return {"items": [interrupt("a?"), interrupt("b?")]}

    asks = flow(ask)
    question = only(await asks.run({}, "t"))
    question = only(await asks.resume("t", {question.interrupt_id: None}))
    done = await asks.resume("t", resume_with(False))

    assert done.unwrap().items == [None, False]


@pytest.mark.promise("LC-30", "RL-14", "flow-23")
async def test_swallowing_a_question_does_not_help() -> None:
    ran: list[str] = []

    @tool
    async def touch() -> str:
        ran.append("touch")
        return "x"

    def catches_errors(state: Log) -> Any:
        try:
            interrupt("a?")
        except Exception:
            return said("swallowed")

    async def catches_all(state: Log, ctx: NodeContext) -> Any:
        try:
            interrupt("a?")
        except BaseException:
            ran.append("caught")
        await ctx.call("touch")
        return said("swallowed")

    for node in (catches_errors, catches_all):
        paused = await flow(node, executor=executor(touch)).run({}, "t")
        assert only(paused).payload == "a?"
        assert paused.state == Log()
    assert ran == ["caught"]
    assert not issubclass(InterruptException, Exception)


@pytest.mark.promise("LC-30", "flow-23")
async def test_a_question_in_a_task_group_arrives_with_a_key() -> None:
    async def ask(state: Log) -> dict[str, Any]:
        found: list[Any] = []

        async def inner(key: str) -> None:
            found.append(interrupt(f"{key}?", key=key))

        async with anyio.create_task_group() as outer:
            async with anyio.create_task_group() as group:
                group.start_soon(inner, "a")
            outer.start_soon(inner, "b")
        return {"log": found}

    asks = flow(ask)
    question = only(await asks.run({}, "t"))
    assert question.payload == "a?"
    question = only(await asks.resume("t", {question.interrupt_id: "A"}))
    done = await asks.resume("t", {question.interrupt_id: "B"})

    assert done.unwrap().log == ("A", "B")


@pytest.mark.promise("flow-36")
async def test_a_question_in_a_task_group_needs_a_key() -> None:
    async def ask(state: Log) -> None:
        async def inner() -> None:
            interrupt("a?")

        async with anyio.create_task_group() as group:
            group.start_soon(inner)

    result = await flow(ask).run({})

    assert result.error is not None
    assert "needs a key" in result.error.message


@pytest.mark.promise("RL-15", "flow-24")
async def test_helpers_in_threads_may_ask() -> None:
    async def ask(state: Log) -> dict[str, Any]:
        return said(await run_sync(interrupt, "a?"))

    asks = flow(ask)
    question = only(await asks.run({}, "t"))

    assert (await asks.resume("t", {question.interrupt_id: "A"})).unwrap().log == ("A",)


@pytest.mark.promise("LC-28", "RL-14", "flow-25")
async def test_only_nodes_may_ask() -> None:
    heard: list[str] = []

    @tool
    async def asks() -> str:
        try:
            return str(interrupt("a?"))
        except InvalidInputError as error:
            heard.append(error.message)
            return "refused"

    async def node(state: Log, ctx: NodeContext) -> dict[str, Any]:
        return said(str((await ctx.call("asks")).content))

    done = await flow(node, executor=executor(asks)).run({})

    assert done.unwrap().log == ("refused",)
    assert heard == ["a tool cannot interrupt a thread"]
    with pytest.raises(InvalidInputError, match="nodes of a graph"):
        interrupt("a?")
    with ThreadPoolExecutor(1) as pool, pytest.raises(InvalidInputError):
        pool.submit(interrupt, "a?").result()


@pytest.mark.promise("LC-28", "flow-26")
async def test_an_answer_has_to_fit_and_is_of_its_type() -> None:
    def ask(state: Log) -> dict[str, Any]:
        when = interrupt("when?", answer=datetime)
        return said(str(when.year), type(when).__name__)

    asks = flow(ask)
    question = only(await asks.run({}, "t"))
    assert question.answer_schema == {"format": "date-time", "type": "string"}
    with pytest.raises(InvalidInputError, match="this cannot answer"):
        await asks.resume("t", {question.interrupt_id: 5})
    done = await asks.resume("t", {question.interrupt_id: "2026-01-02T03:04:05Z"})
    assert done.unwrap().log == ("2026", "datetime")


@pytest.mark.promise("LC-29", "flow-26")
async def test_a_bad_answer_changes_nothing() -> None:
    def ask(state: Log) -> dict[str, Any]:
        return said(str(interrupt("a?", answer=int)), str(interrupt("b?")))

    asks = flow(ask)
    question = only(await asks.run({}, "t"))
    before = await asks._store.read("t")
    for wrong in ({"int_0": 1}, {question.interrupt_id: "x"}, {"int_0": 1, "b": 2}):
        with pytest.raises(InvalidInputError):
            await asks.resume("t", wrong)
    for command in (resume_with("x"), resume_with(1, nothing=2)):
        with pytest.raises(InvalidInputError):
            await asks.resume("t", command)
    assert await asks._store.read("t") == before

    only(await asks.resume("t", {question.interrupt_id: 1}))
    with pytest.raises(InvalidInputError, match="answered before"):
        await asks.resume("t", {question.interrupt_id: 2})


@pytest.mark.promise("flow-26")
async def test_one_command_answers_one_question() -> None:
    graph = Graph(Log, name="g")
    for name in ("a", "b"):
        graph.node(lambda: said(interrupt("x?")), name=name)
        graph.edge(START, name)
    asks = Flow(graph)
    await asks.run({}, "t")

    with pytest.raises(InvalidInputError, match="2 are open"):
        await asks.resume("t", resume_with("x"))


@pytest.mark.promise("LC-25")
async def test_an_answer_may_come_with_an_update() -> None:
    seen: list[str] = []

    def ask(state: Log) -> dict[str, Any]:
        seen.append(state.note)
        return said(interrupt("a?"))

    def after(state: Log) -> dict[str, Any]:
        return said(state.note)

    asks = flow(ask, after)
    await asks.run({}, "t")
    done = await asks.resume("t", resume_with("A", note="new"))

    # The node that asked sees the state that it began with.
    assert seen == ["", ""]
    assert done.unwrap().log == ("A", "new")


async def test_the_first_answer_counts() -> None:
    def ask(state: Log) -> dict[str, Any]:
        return said(interrupt("a?"))

    asks = flow(ask)
    question = only(await asks.run({}, "t"))
    await asks.answer("t", question.interrupt_id, "first", by="anna")
    with pytest.raises(InvalidInputError, match="answered before") as caught:
        await asks.answer("t", question.interrupt_id, "second", by="ben")
    assert caught.value.details["by"] == "anna"
    done = await asks.resume("t")

    assert done.unwrap().log == ("first",)
    [answer] = (await asks.history("t", 1))[0].answers
    assert (answer.by, answer.how, answer.node) == ("anna", "answer", "ask")


@pytest.mark.promise("flow-28")
async def test_a_refusal_and_an_expiry_raise_in_the_node() -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)

    def ask(state: Log) -> dict[str, Any]:
        try:
            return said(interrupt("a?", expires_seconds=60))
        except InterruptDeniedError as error:
            return said(str(error.details["reason"]), error.hint or "")

    asks = flow(ask, clock=lambda: now)
    question = only(await asks.run({}, "denied"))
    await asks.deny("denied", question.interrupt_id, by="anna", reason="not today")
    only(await asks.run({}, "expired"))
    assert [each.thread_id for each in await asks.recover()] == ["denied"]
    now += timedelta(seconds=60)
    [expired] = await asks.recover()

    assert (await asks.state("denied")).log == ("denied", "not today")
    assert expired.unwrap().log == ("expired", "")


async def test_a_denial_that_nobody_heeds_fails_the_node() -> None:
    def ask(state: Log) -> dict[str, Any]:
        interrupt("a?")
        return said("went on")

    asks = flow(ask)
    question = only(await asks.run({}, "t"))
    await asks.deny("t", question.interrupt_id, by="anna")
    result = await asks.resume("t")

    assert (result.status, result.state.log) == ("failed", ())
    with pytest.raises(InterruptDeniedError):
        result.unwrap()


@pytest.mark.parametrize("payload", [float("nan"), object(), "x" * 70_000])
async def test_a_question_is_json_of_bounded_size(payload: Any) -> None:
    def ask(state: Log) -> None:
        interrupt(payload)

    result = await flow(ask).run({})

    assert result.error is not None
    assert result.error.kind in ("invalid_input", "flow.limit")


@pytest.mark.promise("LC-32", "LC-33", "flow-33")
async def test_unwrap_raises_with_all_that_is_needed() -> None:
    def ask(state: Log) -> None:
        interrupt("a?")

    asks = flow(ask)
    paused = await asks.run({}, "t")
    with pytest.raises(GraphInterrupted) as caught:
        paused.unwrap()

    [state] = caught.value.interrupts
    assert isinstance(state, InterruptState)
    assert state == paused.waiting[0] == (await asks.interrupts("t"))[0]
    assert caught.value.checkpoint_id == paused.checkpoint_id == "0"
    assert caught.value.details["interrupts"] == [state.interrupt.interrupt_id]


@pytest.mark.promise("LC-31", "flow-32")
def test_what_is_shown_cannot_act_on_a_terminal() -> None:
    value = InterruptValue(
        interrupt_id="int_1",
        payload={"text\x1b[2J": ["\x1b]0;owned\x07", 5]},
        created_at=datetime(2026, 1, 2, tzinfo=UTC),
        thread_id="t",
        task_id="1.0",
        metadata={"internal": True},
    )

    shown = value.to_display()
    payload: Any = shown["payload"]
    # As they are: the text of a dict would hide what is in it.
    [(key, (text, _))] = payload.items()
    assert key.isprintable() and text.isprintable()
    assert shown["created_at"] == "2026-01-02T00:00:00Z"
    assert "metadata" not in shown
