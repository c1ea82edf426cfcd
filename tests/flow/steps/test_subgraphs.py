"""Graphs in graphs: one thread, whose inner steps are stored as the outer ones are."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from toolcell.core import (
    FlowConflictError,
    FlowLimitError,
    GraphError,
    InvalidInputError,
)
from toolcell.flow import (
    END,
    START,
    Command,
    Flow,
    FlowLimits,
    Graph,
    MemoryCheckpointer,
    NodeContext,
    SendBatch,
    SendResult,
    StepCommitted,
    goto,
    interrupt,
    scatter,
)
from toolcell.tools import tool

from ...support.flow.graphs import Log, chain, said
from ...support.sample_tools import executor

pytestmark = pytest.mark.anyio


class Part(BaseModel):
    """The state of an inner graph of another type."""

    text: str = ""
    size: int = 0


def nested(child: Graph[Any], *outer: str) -> Graph[Log]:
    """Return a graph with the child as its node, inside of further graphs."""
    for name in outer:
        graph = Graph(Log, name=name)
        graph.node(child, name="inner")
        graph.edge(START, "inner").edge("inner", END)
        child = graph
    return child


def one(state: Log) -> dict[str, Any]:
    return said("one")


def two(state: Log) -> dict[str, Any]:
    return said("two")


async def test_fields_that_changed_take_the_place_of_the_outer_ones() -> None:
    """Also where they have a reducer: what was there is not appended again."""
    graph = nested(chain(one, two, name="c"), "outer")
    result = await Flow(graph).run({"log": ("zero",), "note": "n"})

    assert result.unwrap().log == ("zero", "one", "two")
    assert result.unwrap().note == "n"


async def test_enter_and_leave_translate_between_states() -> None:
    inner = Graph(Part, name="part")

    @inner.node
    def count(state: Part) -> dict[str, Any]:
        return {"size": len(state.text)}

    inner.edge(START, "count")
    graph = Graph(Log, name="outer")
    graph.node(
        inner,
        enter=lambda state: Part(text=state.note),
        leave=lambda part: {"total": part.size},
    )
    graph.edge(START, "part")

    assert (await Flow(graph).run({"note": "four", "total": 1})).unwrap().total == 5


async def test_a_graph_may_be_the_worker_of_a_batch() -> None:
    """Also with one task at once: a graph takes no room that its nodes need."""
    inner = Graph(Part, name="part")

    @inner.node
    def count(state: Part) -> dict[str, Any]:
        return {"size": len(state.text)}

    inner.edge(START, "count")
    graph = Graph(Log, name="outer")

    @graph.node
    def split(state: Log) -> SendBatch:
        sends = scatter("part", ["a", "bcd"], key="text")
        return SendBatch(sends=sends, aggregator_node="add")

    @graph.node
    def add(results: list[SendResult]) -> dict[str, Any]:
        return {"items": [each.result for each in results]}

    def enter(text: str) -> Part:
        return Part(text=text)

    graph.node(inner, enter=enter, leave=lambda part: part.size, max_concurrency=1)
    graph.edge(START, "split")
    flow = Flow(graph, limits=FlowLimits(max_concurrency=1))

    with anyio.fail_after(60):
        result = await flow.run({})
    assert result.unwrap().items == [{"result": 1}, {"result": 3}] or (
        result.unwrap().items == [1, 3]
    )


@pytest.mark.promise("flow-44")
async def test_a_question_in_the_innermost_is_one_of_the_thread() -> None:
    """What was done before it, in any of the graphs, is not done again."""
    ran: list[str] = []

    def first(state: Log) -> dict[str, Any]:
        ran.append("first")
        return said("first")

    def asks(state: Log) -> dict[str, Any]:
        ran.append("asks")
        return said(interrupt("name?", answer=str))

    store = MemoryCheckpointer()

    def flow() -> Flow[Log]:
        return Flow(nested(chain(first, asks, name="c"), "b", "a"), checkpointer=store)

    paused = await flow().run({}, "t")
    [question] = paused.interrupts
    assert (question.node_id, question.graph_id) == ("asks", "c")
    assert question.task_id == "1.0/1.0/2.0"
    assert [thread.status for thread in await flow().threads()] == ["interrupted"]

    result = await flow().resume("t", {question.interrupt_id: "anna"}, by="b")
    assert result.unwrap().log == ("first", "anna")
    assert ran == ["first", "asks", "asks"]
    [commit, _] = await flow().history("t")
    assert [(answer.node, answer.by) for answer in commit.answers] == [("asks", "b")]


@pytest.mark.promise("flow-44")
async def test_nothing_of_the_inner_graph_is_left_after_the_outer_commit() -> None:
    store = MemoryCheckpointer()
    graph = nested(chain(one, two, name="c"), "b", "a")
    await Flow(graph, checkpointer=store).run({}, "t")
    stored = await store.read("t")

    assert stored is not None
    assert (list(stored.journal), list(stored.answers)) == ([], [])
    assert len(await store.heads()) == 1


async def test_questions_of_several_graphs_are_open_at_once() -> None:
    graph = Graph(Log, name="outer")

    def asks(state: Log) -> dict[str, Any]:
        return {"note": interrupt("?")}

    graph.node(
        chain(asks, name="c"), name="left", leave=lambda s: said(f"left {s.note}")
    )
    graph.node(
        chain(asks, name="d"), name="right", leave=lambda s: said(f"right {s.note}")
    )
    graph.edge(START, ["left", "right"])
    flow = Flow(graph)
    paused = await flow.run({}, "t")
    left, right = paused.interrupts
    assert (left.graph_id, right.graph_id) == ("c", "d")

    paused = await flow.resume("t", {right.interrupt_id: "r"})
    assert paused.interrupts == (left,)
    result = await flow.resume("t", {left.interrupt_id: "l"})
    assert result.unwrap().log == ("left l", "right r")


@pytest.mark.promise("flow-44")
async def test_a_failure_in_the_innermost_is_tried_again_alone() -> None:
    ran: list[str] = []
    wrong = [True]

    @tool
    def note(text: str) -> str:
        """Note a text."""
        ran.append(text)
        return text

    async def first(state: Log, ctx: NodeContext) -> None:
        await ctx.call("note", text="first")

    async def fails(state: Log, ctx: NodeContext) -> dict[str, Any]:
        await ctx.call("note", text="fails")
        if wrong.pop() if wrong else False:
            raise ValueError
        return said("ok")

    graph = nested(chain(first, fails, name="c"), "b", "a")
    flow = Flow(graph, executor=executor(note))
    failed = await flow.run({}, "t")
    assert failed.status == "failed"
    assert failed.error is not None
    assert failed.error.details["task"] == "1.0/1.0/2.0"

    assert (await flow.resume("t")).unwrap().log == ("ok",)
    assert ran == ["first", "fails"]


@pytest.mark.promise("flow-44")
@pytest.mark.parametrize("level", ["c", "b", "a"])
async def test_a_command_may_be_for_any_of_the_graphs(level: str) -> None:
    """It ends the graphs inside of that one, and is the output of its node there."""

    def leaves(state: Log) -> Command:
        return Command(update=said("left"), goto="after", graph=level)

    def after_of(name: str) -> Any:
        def after(state: Log) -> dict[str, Any]:
            return said(f"after in {name}")

        return after

    child = Graph(Log, name="c")
    child.node(leaves)
    child.node(after_of("c"), name="after")
    child.node(one, name="never")
    child.edge(START, "leaves").edge("leaves", "never")
    for name in ("b", "a"):
        outer = Graph(Log, name=name)
        outer.node(child, name="inner")
        outer.node(after_of(name), name="after")
        outer.edge(START, "inner").edge("inner", END)
        child = outer

    result = await Flow(child).run({"log": ("zero",)})
    assert result.unwrap().log == ("zero", "left", f"after in {level}")


async def test_a_command_for_an_unknown_graph_fails_at_once() -> None:
    def leaves(state: Log) -> Command:
        return Command(goto=END, graph="nowhere")

    result = await Flow(nested(chain(leaves, name="c"), "a")).run({})
    assert isinstance(result.exception, InvalidInputError)
    assert result.error is not None
    assert "'nowhere'" in result.error.message
    assert result.error.hint is not None
    assert "'a', 'c'" in result.error.hint


async def test_two_commands_to_an_enclosing_graph_are_a_conflict() -> None:
    child = Graph(Log, name="c")
    for name in ("x", "y"):
        child.node(lambda: Command(goto=END, graph="a"), name=name)
    child.edge(START, ["x", "y"])

    result = await Flow(nested(child, "a")).run({})
    assert isinstance(result.exception, FlowConflictError)


async def test_graphs_are_nested_to_a_bounded_depth() -> None:
    graph = nested(chain(one, name="c"), "b", "a")
    flow = Flow(graph, limits=FlowLimits(depth=1))
    failed = await flow.run({}, "t")
    assert isinstance(failed.exception, FlowLimitError)
    assert failed.exception.details == {"limit": "depth", "value": 1}

    store = flow._store
    higher = Flow(graph, checkpointer=store, limits=FlowLimits(depth=2))
    assert (await higher.resume("t")).unwrap().log == ("one",)


def test_what_is_wrong_inside_is_told_by_the_outer_check() -> None:
    inner = Graph(Log, name="c")
    inner.node(one)
    inner.edge("one", "nowhere")
    with pytest.raises(GraphError) as caught:
        nested(inner, "a").check()
    assert sorted(caught.value.details["problems"]) == [
        "inner: no way leads from START",
        "inner: one leads to 'nowhere', which is no node",
    ]
    itself = Graph(Log, name="g")
    itself.node(itself, name="again")
    itself.edge(START, "again")
    with pytest.raises(GraphError, match="inside of itself"):
        itself.check()


def test_a_graph_of_another_state_says_how() -> None:
    graph = Graph(Log, name="g")
    with pytest.raises(GraphError, match="needs enter and leave"):
        graph.node(Graph(Part, name="part"))
    with pytest.raises(GraphError, match="are for graphs"):
        graph.node(one, enter=one)  # type: ignore[call-overload]

    async def slow(state: Log) -> Log:
        return state

    def contextual(ctx: NodeContext) -> Log:
        return Log()

    for enter in (slow, contextual):
        with pytest.raises(GraphError, match="a plain function"):
            graph.node(chain(one, name="c"), enter=enter)


def test_the_shape_of_a_graph_holds_those_inside() -> None:
    assert nested(chain(one), "a").shape != nested(chain(one, two), "a").shape


async def test_steps_inside_are_told_with_their_place() -> None:
    flow = Flow(nested(chain(one, two, name="c"), "a"))
    async with flow.stream({}) as events:
        committed = [
            event.checkpoint_id
            async for event in events
            if isinstance(event, StepCommitted)
        ]
    assert committed == ["1.0/1", "1.0/2", "1"]


async def test_a_node_timeout_ends_the_inner_graph() -> None:
    gate = anyio.Event()

    async def waits(state: Log) -> None:
        await gate.wait()

    store = MemoryCheckpointer()

    def flow(timeout: float | None) -> Flow[Log]:
        graph = Graph(Log, name="a")
        graph.node(chain(waits, name="c"), name="inner", timeout=timeout)
        graph.edge(START, "inner")
        return Flow(graph, checkpointer=store)

    failed = await flow(0.01).run({}, "t")
    assert failed.error is not None
    assert failed.error.details["exception"] == "TimeoutError"
    gate.set()
    assert (await flow(None).resume("t")).status == "done"


async def test_a_loop_inside_is_patches_in_one_journal() -> None:
    """A paused inner graph of many steps is read back where it was."""

    def count(state: Log) -> Command:
        if state.total == 40:
            interrupt("on?")
        return goto("count" if state.total < 50 else END, total=1)

    child = Graph(Log, name="c")
    child.node(count)
    child.edge(START, "count")
    store = MemoryCheckpointer()
    graph = nested(child, "a")
    paused = await Flow(graph, checkpointer=store).run({}, "t")
    [question] = paused.interrupts
    assert question.task_id == "1.0/41.0"

    answers = {question.interrupt_id: True}
    result = await Flow(graph, checkpointer=store).resume("t", answers)
    assert result.unwrap().total == 51
