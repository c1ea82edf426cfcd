"""Threads: turns, forks, histories, owners, and code that has changed."""

from __future__ import annotations

from typing import Annotated, Any

import anyio
import pytest
from pydantic import BaseModel

from toolcell.core import (
    CheckpointNotFoundError,
    CheckpointSerializationError,
    FlowError,
    GraphError,
    InvalidInputError,
    Message,
    NodeFailedError,
    ThreadBusyError,
)
from toolcell.flow import (
    START,
    Flow,
    Graph,
    MemoryCheckpointer,
    NodeContext,
    add_messages,
    goto,
    interrupt,
)
from toolcell.flow.spi import CheckpointInfo, ThreadInfo, resume_with

from ..support.flow.graphs import Log, flow, said
from ..support.sample_tools import add, executor

pytestmark = pytest.mark.anyio


def one(state: Log) -> dict[str, Any]:
    return said("one")


def two(state: Log) -> dict[str, Any]:
    return {"log": ("two",), "note": "end"}


@pytest.mark.promise("flow-40")
async def test_a_conversation_goes_on_turn_by_turn() -> None:
    class Talk(BaseModel):
        messages: Annotated[tuple[Message, ...], add_messages] = ()

    graph = Graph(Talk, name="talk")

    @graph.node
    def answer(state: Talk) -> dict[str, Any]:
        said = f"{len(state.messages)}"
        return {"messages": Message.assistant(said)}

    graph.edge(START, "answer")
    talk = Flow(graph)
    for text in ("a", "b", "c"):
        result = await talk.run({"messages": [Message.user(text)]}, "t")

    texts = [message.content for message in result.unwrap().messages]
    assert texts == ["a", "1", "b", "3", "c", "5"]
    assert result.checkpoint_id == "5"


@pytest.mark.promise("flow-40")
async def test_a_paused_thread_is_not_begun_anew() -> None:
    def ask(state: Log) -> None:
        interrupt("a?")

    asks = flow(ask)
    await asks.run({}, "t")

    with pytest.raises(InvalidInputError, match="the thread is interrupted"):
        await asks.run({}, "t")


async def test_resuming_what_has_ended_says_how_it_stands() -> None:
    flow_ = flow(one)
    await flow_.run({}, "t")

    assert (await flow_.resume("t")).unwrap().log == ("one",)
    with pytest.raises(InvalidInputError, match="no open question"):
        await flow_.resume("t", {"int_1": 1})
    with pytest.raises(CheckpointNotFoundError):
        await flow_.resume("nobody")


@pytest.mark.promise("T32")
async def test_answers_have_the_ids_of_their_questions() -> None:
    flow_ = flow(one)
    await flow_.run({}, "t")

    for answer in (True, "yes", [1]):
        with pytest.raises(InvalidInputError, match="a mapping from the ids"):
            await flow_.resume("t", answer)  # type: ignore[arg-type]


@pytest.mark.parametrize("thread_id", ["", "x" * 129, "a b", "ä", "a/b"])
async def test_ids_of_threads_are_plain(thread_id: str) -> None:
    with pytest.raises(InvalidInputError, match="no id of a thread"):
        await flow(one).run({}, thread_id)


async def test_a_state_has_to_fit_when_a_thread_begins() -> None:
    for wrong in ({"total": "x"}, {"items": [object()]}, 5):
        with pytest.raises(InvalidInputError, match="this is no Log"):
            await flow(one).run(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="metadata"):
        await flow(one).run({}, metadata={"x": object()})  # type: ignore[dict-item]
    result = await flow(one).run(Log(note="x"))
    assert result.unwrap().note == "x"


@pytest.mark.promise("flow-41")
async def test_history_says_what_changed_and_pages() -> None:
    flow_ = flow(one, two)
    await flow_.run({}, "t")
    newest, *older = await flow_.history("t")

    assert isinstance(newest, CheckpointInfo)
    assert (newest.checkpoint_id, newest.step, newest.next_nodes) == ("2", 2, ())
    assert newest.changed == ("log", "note")
    assert [each.next_nodes for each in older] == [("two",), ("one",)]
    assert await flow_.history("t", 1, before="2") == older[:1]
    assert await flow_.history("nobody") == []
    assert (await flow_.state("t", "1")).log == ("one",)
    with pytest.raises(CheckpointNotFoundError):
        await flow_.state("t", "9")


async def test_threads_are_listed_the_last_changed_first() -> None:
    flow_ = flow(one)
    for name in ("a", "b", "c"):
        await flow_.run({}, name, metadata={"of": name})
    await flow_.run({}, "a")
    listed = await flow_.threads(limit=2)

    assert isinstance(listed[0], ThreadInfo)
    assert [each.thread_id for each in listed] == ["a", "c"]
    assert listed[1].metadata == {"of": "c"}
    rest = await flow_.threads(before="c", status="done")
    assert [each.thread_id for each in rest] == ["b"]
    assert await flow_.threads(status="failed") == []


@pytest.mark.promise("flow-41")
async def test_a_fork_leaves_the_old_thread_alone() -> None:
    made: list[int] = []

    async def first(state: Log, ctx: NodeContext) -> dict[str, Any]:
        result = await ctx.call("add", a=1, b=1)
        made.append(1)
        return said(result.call_id)

    def last(state: Log) -> dict[str, Any]:
        return said("last")

    flow_ = flow(first, last, executor=executor(add))
    await flow_.run({}, "t", metadata={"of": "me"})
    store = flow_._store
    before = await store.read("t")
    for number in ("0", "1", "2"):
        new = await flow_.fork("t", number, new_thread_id=f"fork{number}")
        assert await flow_.state(new) == await flow_.state("t", number)
    done = await flow_.resume("fork0")

    assert done.unwrap().log == ("fork0/1.0/0", "last")
    assert (await flow_.resume("fork1")).unwrap().log == ("t/1.0/0", "last")
    assert (await flow_.resume("fork2")).unwrap().log == ("t/1.0/0", "last")
    assert await store.read("t") == before
    [info] = [t for t in await flow_.threads() if t.thread_id == "fork0"]
    assert info.metadata == {
        "of": "me",
        "forked_from": {"thread": "t", "checkpoint": "0"},
    }
    assert len(made) == 2


async def test_a_fork_may_change_the_state_and_go_elsewhere() -> None:
    flow_ = flow(one, two)
    await flow_.run({}, "t")
    command = goto("two", note="forked", log=("x",))
    new = await flow_.fork("t", "0", command=command)

    assert (await flow_.state(new)).note == "forked"
    assert (await flow_.resume(new)).unwrap().log == ("x", "two")
    with pytest.raises(GraphError):
        await flow_.fork("t", command=goto("nowhere"))
    with pytest.raises(InvalidInputError, match="takes an update"):
        await flow_.fork("t", command=resume_with(1))
    with pytest.raises(ThreadBusyError):
        await flow_.fork("t", new_thread_id="t")


async def test_a_thread_has_one_owner_at_a_time() -> None:
    inside, gate = anyio.Event(), anyio.Event()

    async def waits(state: Log) -> None:
        inside.set()
        await gate.wait()

    flow_ = flow(waits)
    async with anyio.create_task_group() as group:
        group.start_soon(flow_.run, {}, "t")
        await inside.wait()
        with pytest.raises(ThreadBusyError):
            await flow_.resume("t")
        assert await flow_.recover() == []
        gate.set()

    assert (await flow_.resume("t")).status == "done"


async def test_a_run_that_was_cancelled_is_recovered() -> None:
    """What was done stays done, and the thread waits for nobody."""
    inside, gate = anyio.Event(), anyio.Event()
    ran: list[str] = []

    async def first(state: Log) -> dict[str, Any]:
        ran.append("first")
        return said("first")

    async def waits(state: Log) -> dict[str, Any]:
        ran.append("waits")
        inside.set()
        await gate.wait()
        return said("waits")

    flow_ = flow(first, waits)
    async with anyio.create_task_group() as group:
        group.start_soon(flow_.run, {}, "t")
        await inside.wait()
        group.cancel_scope.cancel()
    gate.set()
    assert [thread.status for thread in await flow_.threads()] == ["running"]
    [result] = await flow_.recover()

    assert result.unwrap().log == ("first", "waits")
    assert ran == ["first", "waits", "waits"]


async def test_a_cancelled_thread_is_over_and_can_be_forked() -> None:
    def ask(state: Log) -> None:
        interrupt("a?")

    flow_ = flow(one, ask)
    await flow_.run({}, "t")
    await flow_.cancel("t", by="anna")
    result = await flow_.resume("t")

    assert result.status == "cancelled"
    with pytest.raises(FlowError, match="was cancelled"):
        result.unwrap()
    new = await flow_.fork("t")
    assert (await flow_.resume(new)).status == "interrupted"


async def test_a_failure_says_where_and_keeps_secrets_to_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(state: Log) -> None:
        raise ValueError("hunter2")

    result = await flow(broken).run({}, "t")

    assert result.error is not None
    assert result.error.details == {
        "thread": "t",
        "step": 1,
        "task": "1.0",
        "node": "broken",
        "exception": "ValueError",
    }
    assert "hunter2" not in result.error.model_dump_json()
    assert "hunter2" in caplog.text
    with pytest.raises(NodeFailedError) as caught:
        result.unwrap()
    assert isinstance(caught.value.__cause__, ValueError)


async def test_a_failure_is_told_in_another_process_too() -> None:
    def broken(state: Log) -> None:
        raise ValueError

    store = MemoryCheckpointer()
    await flow(broken, checkpointer=store).run({}, "t")
    await flow(broken, checkpointer=store).cancel("t", by="anna")
    other = await flow(broken, checkpointer=store).resume("t")

    assert other.error is not None
    assert other.error.kind == "flow.node"


def graph_of(state: type[BaseModel], **options: Any) -> Graph[Any]:
    graph = Graph(state, name="g", **options)
    graph.node(lambda: interrupt("a?") and None, name="ask")
    graph.edge(START, "ask")
    return graph


class Old(BaseModel):
    n: int = 1


class WithDefault(BaseModel):
    n: int = 1
    more: int = 2


class WithoutDefault(BaseModel):
    n: int
    more: int


class Without(BaseModel):
    other: int = 0


@pytest.mark.promise("flow-39")
async def test_a_thread_goes_on_with_new_code_if_it_fits() -> None:
    store = MemoryCheckpointer()
    await Flow(graph_of(Old), checkpointer=store).run({}, "t")

    for misfit in (Without, WithoutDefault):
        with pytest.raises(CheckpointSerializationError, match="does not fit"):
            await Flow(graph_of(misfit), checkpointer=store).state("t")
    newer = Flow(graph_of(WithDefault, version="2"), checkpointer=store)
    assert await newer.state("t") == WithDefault(n=1, more=2)
    done = await newer.resume("t", resume_with(1))
    assert done.unwrap() == WithDefault(n=1, more=2)


@pytest.mark.promise("flow-39")
async def test_a_node_that_is_gone_is_an_error() -> None:
    store = MemoryCheckpointer()
    await Flow(graph_of(Old), checkpointer=store).run({}, "t")
    graph = Graph(Old, name="g")
    graph.node(lambda: None, name="renamed")
    graph.edge(START, "renamed")

    with pytest.raises(CheckpointSerializationError, match="no node 'ask'"):
        await Flow(graph, checkpointer=store).resume("t")
    with pytest.raises(CheckpointSerializationError, match="of the graph 'g'"):
        await flow(one, checkpointer=store).state("t")


@pytest.mark.promise("flow-39")
async def test_an_older_state_is_migrated_once() -> None:
    seen: list[Any] = []

    def migrate(state: dict[str, Any], version: str) -> dict[str, Any]:
        seen.append((state, version))
        return {"other": state["n"] * 10}

    store = MemoryCheckpointer()
    await Flow(graph_of(Old), checkpointer=store).run({}, "t")
    newer = Flow(graph_of(Without, version="2", migrate=migrate), checkpointer=store)
    done = await newer.resume("t", resume_with(1))

    assert done.unwrap() == Without(other=10)
    assert set(map(str, seen)) == {"({'n': 1}, '1')"}
    seen.clear()
    assert await newer.state("t") == Without(other=10)
    assert seen == []
