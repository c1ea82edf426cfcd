"""Steps: which tasks run, what they see, and how their updates are merged."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Annotated, Any

import anyio
import pytest
from pydantic import BaseModel

from toolcell.core import (
    ConfigError,
    FlowConflictError,
    InvalidInputError,
    NodeFailedError,
)
from toolcell.flow import (
    END,
    START,
    Command,
    Continue,
    Flow,
    FlowLimits,
    Graph,
    MemoryCheckpointer,
    NodeContext,
    Send,
    append_list,
    end,
    goto,
)
from toolcell.flow.spi import End

from ...support.flow.graphs import Log, chain, flow, said

pytestmark = pytest.mark.anyio


def speakers(graph: Graph[Log], *names: str) -> None:
    """Add nodes that say their name."""
    for name in names:

        def node(state: Log, name: str = name) -> dict[str, Any]:
            return said(name)

        graph.node(node, name=name)


async def log_of(graph: Graph[Log], **state: Any) -> list[str]:
    result = await Flow(graph).run(state)
    return list(result.unwrap().log)


@pytest.mark.promise("LC-21", "flow-10")
async def test_a_command_goes_before_a_route_before_an_edge() -> None:
    graph = Graph(Log, name="g")
    speakers(graph, "edge", "route", "command")

    @graph.node
    def first(state: Log) -> Command | None:
        return goto("command", note="x") if state.note == "command" else None

    graph.edge(START, "first").edge("first", "edge")
    assert await log_of(graph) == ["edge"]
    graph.route("first", lambda state: "route", ["route"])
    assert await log_of(graph) == ["route"]
    assert await log_of(graph, note="command") == ["command"]


@pytest.mark.promise("LC-21", "LC-36", "flow-10")
async def test_targets_run_in_parallel_each_once_and_sends_each() -> None:
    graph = Graph(Log, name="g")
    speakers(graph, "x", "y")

    @graph.node
    def worker(state: Log, n: int) -> dict[str, Any]:
        return said(f"w{n}")

    @graph.node
    def first(state: Log) -> Command:
        targets: list[str | Send] = [
            "y",
            "x",
            Send("worker", {"n": 1}),
            "y",
            Send("worker", {"n": 1}),
        ]
        return goto(targets)

    graph.edge(START, "first")
    assert await log_of(graph) == ["y", "x", "w1", "w1"]


@pytest.mark.promise("flow-10")
async def test_two_ways_to_one_node_run_it_once() -> None:
    graph = Graph(Log, name="g")
    speakers(graph, "a", "b", "c")
    graph.edge(START, ["a", "b"]).edge("a", "c").edge("b", "c")

    assert await log_of(graph) == ["a", "b", "c"]


@pytest.mark.promise("flow-11")
async def test_a_join_waits_for_branches_of_different_length() -> None:
    graph = Graph(Log, name="g")
    speakers(graph, "short", "long1", "long2")

    @graph.node
    def join(state: Log) -> Command:
        rounds = sum(each == "join" for each in state.log)
        return goto(END if rounds else ["short", "long1"], log=("join",))

    graph.edge(START, ["short", "long1"]).edge("long1", "long2")
    graph.edge(["short", "long2"], "join")

    once = ["short", "long1", "long2", "join"]
    assert await log_of(graph) == once * 2


@pytest.mark.promise("LC-22", "flow-12")
async def test_end_drops_the_ways_of_siblings_and_keeps_their_updates() -> None:
    graph = Graph(Log, name="g")
    speakers(graph, "never")

    @graph.node
    def stop(state: Log) -> End:
        return end(log=("stop",))

    @graph.node
    def sibling(state: Log) -> Continue:
        return Continue(update=said("sibling"))

    graph.edge(START, ["stop", "sibling"]).edge("sibling", "never")
    assert await log_of(graph) == ["stop", "sibling"]


@pytest.mark.promise("LC-22", "flow-12")
async def test_end_as_a_target_ends_that_branch_alone() -> None:
    graph = Graph(Log, name="g")
    speakers(graph, "next")

    @graph.node
    def stop(state: Log) -> Command:
        return goto(END, log=("stop",))

    @graph.node
    def sibling(state: Log) -> None: ...

    graph.edge(START, ["stop", "sibling"]).edge("sibling", "next")
    assert await log_of(graph) == ["stop", "next"]


@pytest.mark.promise("LC-45", "LC-47", "flow-13")
@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
async def test_merging_follows_the_tasks_never_their_ends(
    order: tuple[int, ...],
) -> None:
    graph = Graph(Log, name="g")
    ended = [anyio.Event() for _ in range(5)]
    ended[4].set()

    for number in range(4):

        async def node(state: Log, number: int = number) -> dict[str, Any]:
            place = order.index(number)
            await ended[order[place - 1] if place else 4].wait()
            ended[number].set()
            return {"log": (str(number),), "total": number}

        graph.node(node, name=f"n{number}")
        graph.edge(START, f"n{number}")

    assert await log_of(graph) == ["0", "1", "2", "3"]


@pytest.mark.promise("LC-47", "flow-14")
async def test_two_writers_of_a_plain_field_are_a_conflict() -> None:
    def make(*, fixed: bool) -> Graph[Log]:
        graph = Graph(Log, name="g")

        @graph.node
        def one(state: Log) -> dict[str, Any]:
            return {"note": "same", "log": ("one",)}

        @graph.node
        def two(state: Log) -> dict[str, Any]:
            return {"log": ("two",)} if fixed else {"note": "same", "log": ("two",)}

        graph.edge(START, ["one", "two"])
        return graph

    store = MemoryCheckpointer()
    result = await Flow(make(fixed=False), checkpointer=store).run({}, "t")

    assert result.status == "failed"
    with pytest.raises(FlowConflictError, match=r"one \(1.0\) and two \(1.1\)"):
        result.unwrap()
    assert result.error is not None
    assert result.error.details == {"field": "note", "tasks": ["1.0", "1.1"]}
    assert result.state == Log()
    again = await Flow(make(fixed=False), checkpointer=store).resume("t")
    assert again.status == "failed"
    fixed = await Flow(make(fixed=True), checkpointer=store).resume("t")
    assert fixed.unwrap() == Log(log=("one", "two"), note="same")


@pytest.mark.promise("flow-15")
async def test_no_task_sees_or_spoils_what_another_has() -> None:
    seen: list[Any] = []
    graph = Graph(Log, name="g")
    ready = anyio.Event()

    @graph.node
    async def spoils(state: Log) -> dict[str, Any]:
        state.items.append(2)
        state.items[0]["x"] = "spoilt"
        ready.set()
        return said("spoils")

    @graph.node
    async def looks(state: Log) -> None:
        await ready.wait()
        seen.append(state.items)

    graph.edge(START, ["spoils", "looks"])
    given = [{"x": 1}]
    flow = Flow(graph)
    result = await flow.run({"items": given}, "t")

    assert seen == [[{"x": 1}]]
    assert result.state.items == [{"x": 1}] == given
    assert (await flow.state("t", "0")).items == [{"x": 1}]


@pytest.mark.promise("LC-27", "flow-16")
@pytest.mark.parametrize(
    ("update", "why"),
    [
        ({"note": 5}, "node 'wrong' updates 'note'"),
        ({"log": 5}, "node 'wrong' updates 'log'"),
        ({"items": [float("nan")]}, "node 'wrong' updates 'items'"),
        ({"other": 5}, "'other', which is no field"),
        (5, "'result', which is no field"),
        (Log(), "the state itself"),
        (Command(graph="elsewhere"), "commands the graph"),
        (Command(resume=1), "returned an answer"),
    ],
)
async def test_what_does_not_fit_is_refused_by_name(update: Any, why: str) -> None:
    def wrong(state: Log) -> Any:
        return update

    result = await flow(wrong).run({})

    assert result.status == "failed"
    with pytest.raises(InvalidInputError, match=why):
        result.unwrap()


async def test_a_way_to_no_node_fails_the_task() -> None:
    def lost(state: Log) -> Command:
        return goto("nowhere")

    result = await flow(lost).run({})

    assert result.error is not None
    assert (result.error.kind, result.status) == ("flow.graph", "failed")


async def test_routes_see_the_state_after_the_step_once() -> None:
    asked: list[int] = []

    def choose(state: Log) -> list[str]:
        asked.append(state.total)
        return ["again"] if state.total < 6 else []

    graph = Graph(Log, name="g")

    @graph.node
    def again(state: Log) -> dict[str, Any]:
        return {"total": 2}

    graph.edge(START, "again").route("again", choose, ["again"])
    result = await Flow(graph).run({})

    assert result.unwrap().total == 6
    assert asked == [2, 4, 6]


@pytest.mark.parametrize(
    ("choose", "kind"), [(lambda s: "b", "flow.graph"), (lambda s: 1 / 0, "flow.node")]
)
async def test_a_route_that_goes_wrong_fails_the_step(choose: Any, kind: str) -> None:
    graph = Graph(Log, name="g")
    speakers(graph, "a", "b")
    graph.edge(START, "a").route("a", choose, ["a"])
    result = await Flow(graph).run({})

    assert result.error is not None
    assert (result.status, result.error.kind) == ("failed", kind)


async def test_a_reducer_that_raises_names_field_and_task() -> None:
    def broken(current: int, update: int) -> int:
        raise ValueError("hunter2")

    class State(BaseModel):
        n: Annotated[int, broken] = 0

    graph = Graph(State, name="g")

    @graph.node
    def one(state: State) -> dict[str, Any]:
        return {"n": 1}

    graph.edge(START, "one")
    result = await Flow(graph).run({})

    assert result.error is not None
    assert result.error.details["field"] == "n"
    assert "hunter2" not in result.error.model_dump_json()
    with pytest.raises(NodeFailedError) as caught:
        result.unwrap()
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.promise("flow-20")
async def test_too_many_tasks_are_refused_before_any_runs() -> None:
    ran: list[int] = []

    def fan(state: Log) -> list[Send]:
        return [Send("worker", {"n": n}) for n in range(4)]

    def worker(state: Log, n: int) -> None:
        ran.append(n)

    graph = chain(fan)
    graph.node(worker)
    held = Flow(graph, limits=FlowLimits(max_tasks=3))
    result = await held.run({}, "t")

    assert (result.status, ran) == ("failed", [])
    higher = Flow(graph, limits=FlowLimits(max_tasks=4), checkpointer=held._store)
    assert (await higher.resume("t")).status == "done"
    assert sorted(ran) == [0, 1, 2, 3]
    with pytest.raises(ConfigError):
        FlowLimits(max_tasks=0)


async def test_a_context_says_where_it_is_and_repeats_its_chance() -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    seen: list[Any] = []

    def look(state: Log, ctx: NodeContext) -> None:
        seen.append((ctx.thread_id, ctx.node, ctx.step, ctx.task_id, ctx.attempt))
        seen.append((ctx.agent_id, ctx.started_at, ctx.random.random()))

    for _ in range(2):
        await flow(look, agent_id="a", clock=lambda: now).run({}, "t")

    assert seen[:2] == seen[2:]
    assert seen[0] == ("t", "look", 1, "1.0", 1)
    assert seen[1][:2] == ("a", now)


async def test_many_messages_take_room_as_they_come() -> None:
    """A step's patch holds what is new; the state is not written again each time."""

    class Talk(BaseModel):
        lines: Annotated[tuple[str, ...], append_list] = ()

    graph = Graph(Talk, name="talk")

    @graph.node
    def say(state: Talk) -> Command:
        return goto("say" if len(state.lines) < 300 else END, lines=("x" * 1000,))

    graph.edge(START, "say")
    flow = Flow(graph)
    await flow.run({}, "t")

    texts = await flow._store.checkpoints("t", 1000)
    assert sum(map(len, texts)) < 3.2 * 301 * 1000
    for number in (0, 1, 150, 301):
        assert len((await flow.state("t", str(number))).lines) == number
