"""Streams: what happens in a run, told in order, to a reader that may be slow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from toolcell.core import (
    FlowLimitError,
    InvalidInputError,
    Message,
    ModelChunk,
    ModelResponse,
    ThreadBusyError,
)
from toolcell.flow import (
    Answered,
    CallEnded,
    Emitted,
    Ended,
    FlowLimits,
    Interrupted,
    MemoryCheckpointer,
    NodeContext,
    StepCommitted,
    StepStarted,
    TaskEnded,
    TaskStarted,
    interrupt,
)
from toolcell.flow.spi import Checkpointer as AnyCheckpointer
from toolcell.flow.spi import EventStream, FlowEvent
from toolcell.tools import tool

from ...support.flow.graphs import Log, flow, said
from ...support.sample_tools import executor

pytestmark = pytest.mark.anyio


@tool
def twice(n: int) -> int:
    """Double a number."""
    return 2 * n


async def calls_and_asks(state: Log, ctx: NodeContext) -> dict[str, Any]:
    await ctx.emit("before")
    made = await ctx.call("twice", n=2)
    await ctx.emit({"made": made.content})
    answer = interrupt("go on?")
    await ctx.emit("after")
    return said(str(answer))


async def read(stream: EventStream[Log]) -> list[FlowEvent]:
    async with stream as events:
        return [event async for event in events]


def kinds(events: Sequence[FlowEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


@pytest.mark.promise("flow-42")
async def test_events_come_in_order_and_are_not_emitted_twice() -> None:
    flow_ = flow(calls_and_asks, executor=executor(twice))
    first = await read(flow_.stream({}, "t"))
    ended = first[-1]
    assert isinstance(ended, Ended)
    [question] = ended.result.interrupts

    assert first[:-1] == [
        StepStarted(1, ("1.0",)),
        TaskStarted("1.0", "calls_and_asks", 1),
        Emitted("1.0", "calls_and_asks", "before"),
        CallEnded("1.0", "twice", "t/1.0/0", "ok", False),
        Emitted("1.0", "calls_and_asks", {"made": 4}),
        Interrupted(question),
        TaskEnded("1.0", "calls_and_asks", "asking"),
    ]

    answers = {question.interrupt_id: "yes"}
    stream = flow_.stream(thread_id="t", answers=answers, by="anna")
    second = await read(stream)

    assert second[:-1] == [
        Answered(question.interrupt_id, "anna"),
        StepStarted(1, ("1.0",)),
        TaskStarted("1.0", "calls_and_asks", 1),
        CallEnded("1.0", "twice", "t/1.0/0", "ok", True),
        Emitted("1.0", "calls_and_asks", "after"),
        TaskEnded("1.0", "calls_and_asks", "done"),
        StepCommitted(1, "1", ("log",)),
    ]
    assert stream.result.unwrap().log == ("yes",)


async def test_what_failed_is_told_without_its_text() -> None:
    def broken(state: Log) -> None:
        raise ValueError("hunter2")

    events = await read(flow(broken).stream({}))

    [ended] = [event for event in events if isinstance(event, TaskEnded)]
    assert ended.status == "failed"
    assert ended.error is not None
    assert "hunter2" not in repr(ended)
    assert isinstance(events[-1], Ended)
    assert events[-1].result.status == "failed"


class Gated(MemoryCheckpointer):
    """A store whose commits wait."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = anyio.Event()
        self.waits = anyio.Event()

    async def commit(self, *args: Any, **options: Any) -> None:
        self.waits.set()
        await self.gate.wait()
        await super().commit(*args, **options)


@pytest.mark.promise("flow-42")
async def test_a_commit_is_told_after_it_was_stored() -> None:
    store = Gated()
    seen: list[FlowEvent] = []
    stream = flow(lambda_node, checkpointer=store).stream({})

    async def collect() -> None:
        async with stream as events:
            async for event in events:
                seen.append(event)

    async with anyio.create_task_group() as group:
        group.start_soon(collect)
        await store.waits.wait()
        await anyio.wait_all_tasks_blocked()
        assert kinds(seen) == ["StepStarted", "TaskStarted", "TaskEnded"]
        store.gate.set()
    assert kinds(seen)[-2:] == ["StepCommitted", "Ended"]


class Slow(MemoryCheckpointer):
    """A store whose journal waits."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = anyio.Event()
        self.waits = anyio.Event()

    async def append(self, *args: Any, **options: Any) -> None:
        self.waits.set()
        await self.gate.wait()
        await super().append(*args, **options)


@pytest.mark.promise("flow-42")
async def test_a_question_is_told_after_it_was_stored() -> None:
    def asks(state: Log) -> None:
        interrupt("go on?")

    store, seen = Slow(), []

    async def collect() -> None:
        async with flow(asks, checkpointer=store).stream({}, "t") as events:
            async for event in events:
                seen.append(event)

    async with anyio.create_task_group() as group:
        group.start_soon(collect)
        await store.waits.wait()
        await anyio.wait_all_tasks_blocked()
        assert kinds(seen) == ["StepStarted", "TaskStarted"]
        store.gate.set()
    assert kinds(seen)[2:] == ["Interrupted", "TaskEnded", "Ended"]


def lambda_node(state: Log) -> dict[str, Any]:
    return said("x")


@pytest.mark.promise("flow-42")
async def test_leaving_early_cancels_the_run_which_can_be_resumed() -> None:
    cancelled, gate = anyio.Event(), anyio.Event()

    async def waits(state: Log, ctx: NodeContext) -> dict[str, Any]:
        await ctx.emit("here")
        try:
            await gate.wait()
        finally:
            cancelled.set()
        return said("x")

    flow_ = flow(waits)
    async with flow_.stream({}, "t") as events:
        async for event in events:
            if isinstance(event, Emitted):
                break
        with pytest.raises(InvalidInputError, match="no result yet"):
            _ = events.result

    assert cancelled.is_set()
    gate.set()
    assert (await flow_.resume("t")).unwrap().log == ("x",)


async def test_the_reader_s_own_error_goes_on_as_it_is() -> None:
    with pytest.raises(LookupError, match="mine"):
        async with flow(lambda_node).stream({}) as events:
            async for _ in events:
                raise LookupError("mine")


@pytest.mark.promise("flow-42")
async def test_a_slow_reader_slows_the_thread() -> None:
    """The node has emitted what the buffer holds, and no more."""
    emitted: list[int] = []

    async def chatters(state: Log, ctx: NodeContext) -> None:
        for number in range(200):
            await ctx.emit(number)
            emitted.append(number)

    async with flow(chatters).stream({}) as events:
        await anyio.wait_all_tasks_blocked()
        assert len(emitted) == 62  # Two events came before.
        read_now = [event async for event in events]

    data = [each.data for each in read_now if isinstance(each, Emitted)]
    assert data == list(range(200))


async def test_errors_of_a_run_are_raised_by_its_stream() -> None:
    store: AnyCheckpointer = MemoryCheckpointer()
    flow_ = flow(lambda_node, checkpointer=store)
    await flow_.run({}, "t")
    await store.claim("t")

    with pytest.raises(ThreadBusyError):
        await read(flow_.stream({}, "t"))
    with pytest.raises(InvalidInputError, match="this is no Log"):
        await read(flow_.stream({"total": "x"}))


async def test_a_stream_runs_or_resumes_once() -> None:
    flow_ = flow(lambda_node)
    for arguments in ({}, {"value": {}, "answers": {"x": 1}}):
        with pytest.raises(InvalidInputError, match="runs a value, or resumes"):
            flow_.stream(**arguments)  # type: ignore[arg-type]
    stream = flow_.stream({})
    with pytest.raises(InvalidInputError, match="inside `async with`"):
        aiter(stream)
    await read(stream)
    with pytest.raises(InvalidInputError, match="used once"):
        await read(stream)


@pytest.mark.parametrize("data", [float("nan"), object()])
async def test_what_is_emitted_is_json(data: Any) -> None:
    async def emits(state: Log, ctx: NodeContext) -> None:
        await ctx.emit(data)

    result = await flow(emits).run({})
    assert isinstance(result.exception, InvalidInputError)


async def test_what_is_emitted_is_bounded() -> None:
    async def emits(state: Log, ctx: NodeContext) -> None:
        await ctx.emit("x" * 98)
        await ctx.emit("x" * 99)

    events = await read(flow(emits, limits=FlowLimits(record_bytes=100)).stream({}))
    assert kinds(events).count("Emitted") == 1
    with pytest.raises(FlowLimitError, match="100 bytes"):
        assert isinstance(events[-1], Ended)
        events[-1].result.unwrap()


class Talks:
    """A model whose answer comes in parts."""

    asked = 0

    async def complete(self, *_: Any, **options: Any) -> ModelResponse:
        raise AssertionError("its answer is streamed")

    async def stream(self, *_: Any, **options: Any) -> Any:
        self.asked += 1
        for part in ("a", "b"):
            yield ModelChunk(text=part)
        yield ModelChunk(response=ModelResponse(message=Message.assistant("ab")))


async def test_the_text_of_a_model_is_emitted_as_it_comes_and_kept() -> None:
    model = Talks()

    async def asks(state: Log, ctx: NodeContext) -> dict[str, Any]:
        answer = await ctx.ask(model, [Message.user("?")], stream=True)
        interrupt("ok?")
        return said(answer.message.content)

    flow_ = flow(asks)
    first = await read(flow_.stream({}, "t"))
    assert [e.data for e in first if isinstance(e, Emitted)] == ["a", "b"]
    [question] = [e.interrupt for e in first if isinstance(e, Interrupted)]
    second = await read(flow_.stream(thread_id="t", answers={question.interrupt_id: 1}))

    assert "Emitted" not in kinds(second)
    assert isinstance(second[-1], Ended)
    assert second[-1].result.unwrap().log == ("ab",)
    assert model.asked == 1
