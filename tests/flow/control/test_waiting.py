"""Waiting in the process for answers and owners, and cancelling from elsewhere."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import anyio
import pytest

from toolcell.core import (
    CheckpointNotFoundError,
    FlowError,
    InvalidInputError,
    ThreadBusyError,
)
from toolcell.flow import (
    CallEnded,
    Interrupted,
    InterruptHandler,
    MemoryCheckpointer,
    NodeContext,
    interrupt,
)
from toolcell.tools import tool

from ...support.flow.graphs import Log, flow, said
from ...support.sample_tools import executor

pytestmark = pytest.mark.anyio


def asks(state: Log) -> dict[str, Any]:
    return said(str(interrupt("a?")), str(interrupt("b?")))


async def test_answers_of_others_are_waited_for() -> None:
    """The run goes on from question to question, and never pauses."""
    store = MemoryCheckpointer()
    other = flow(asks, checkpointer=store)
    async with (
        anyio.create_task_group() as group,
        flow(asks, checkpointer=store).stream({}, "t", wait_seconds=60) as events,
    ):
        async for event in events:
            if isinstance(event, Interrupted):
                asked = event.interrupt
                answer = partial(other.answer, by="anna")
                group.start_soon(answer, "t", asked.interrupt_id, asked.payload)

    assert events.result.unwrap().log == ("a?", "b?")
    [commit, _] = await other.history("t")
    assert [(each.by, each.how) for each in commit.answers] == [("anna", "answer")] * 2


async def test_a_wait_that_is_over_pauses_the_thread() -> None:
    result = await flow(asks).run({}, wait_seconds=0.01)
    assert result.status == "interrupted"


class Silent(InterruptHandler):
    """A handler that counts, and answers nothing."""

    seen = 0

    async def can_handle(self, interrupt: Any) -> bool:
        self.seen += 1
        return False


async def test_a_handler_is_asked_once_about_a_question() -> None:
    handler, store = Silent(), MemoryCheckpointer()
    other = flow(asks, checkpointer=store)
    async with flow(asks, handler=handler, checkpointer=store).stream(
        {}, "t", wait_seconds=60
    ) as events:
        async for event in events:
            if isinstance(event, Interrupted):
                await other.answer("t", event.interrupt.interrupt_id, 1, by="anna")

    assert events.result.status == "done"
    assert handler.seen == 2


async def test_another_owner_may_be_waited_for() -> None:
    inside, gate = anyio.Event(), anyio.Event()

    async def waits(state: Log) -> dict[str, Any]:
        inside.set()
        await gate.wait()
        return said("x")

    flow_ = flow(waits)
    async with anyio.create_task_group() as group:
        group.start_soon(flow_.run, {}, "t")
        await inside.wait()
        with pytest.raises(ThreadBusyError):
            await flow_.resume("t", wait_seconds=0.01)
        group.start_soon(_set, gate)
        result = await flow_.resume("t", wait_seconds=60)

    assert result.unwrap().log == ("x",)


async def _set(gate: anyio.Event) -> None:
    gate.set()


@pytest.mark.promise("flow-43")
async def test_a_thread_is_cancelled_where_it_runs() -> None:
    """Its node and its call are stopped, its own caller is told, and it stays so."""
    inside, store = anyio.Event(), MemoryCheckpointer()
    results = []

    @tool
    async def hang() -> None:
        """Hang."""
        inside.set()
        await anyio.sleep(math.inf)

    async def calls(state: Log, ctx: NodeContext) -> None:
        await ctx.call("hang")

    async def run() -> None:
        own = flow(calls, checkpointer=store, executor=executor(hang))
        results.append(await own.run({}, "t"))

    other = flow(calls, checkpointer=store)
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await inside.wait()
        await other.cancel("t", by="anna", wait_seconds=60)

    assert [result.status for result in results] == ["cancelled"]
    assert results[0].error is not None
    assert results[0].error.details["by"] == "anna"
    assert (await other.resume("t")).status == "cancelled"
    with pytest.raises(FlowError, match="was cancelled"):
        results[0].unwrap()
    with pytest.raises(InvalidInputError, match="is cancelled"):
        await other.run({}, "t")
    with pytest.raises(CheckpointNotFoundError):
        await other.cancel("nobody", by="anna")


async def test_an_owner_that_hangs_is_not_waited_for_forever() -> None:
    """It hears the wish when it thaws."""
    store = MemoryCheckpointer()
    flow_ = flow(asks, checkpointer=store)
    await flow_.run({}, "t")
    lease = await store.claim("t")
    with pytest.raises(ThreadBusyError):
        await flow_.cancel("t", by="anna", wait_seconds=0)
    await store.release(lease)

    assert (await flow_.resume("t")).status == "cancelled"


async def test_cancelling_what_has_ended_changes_nothing() -> None:
    flow_ = flow(lambda_node)
    before = await flow_.run({}, "t")
    await flow_.cancel("t", by="anna")

    after = await flow_.resume("t")
    assert (after.status, after.state) == ("done", before.state)


def lambda_node(state: Log) -> dict[str, Any]:
    return said("x")


async def test_calls_are_given_as_dicts_too() -> None:
    @tool
    def twice(n: int) -> int:
        """Double a number."""
        return 2 * n

    async def calls(state: Log, ctx: NodeContext) -> dict[str, Any]:
        asked = [{"name": "twice", "arguments": {"n": n}} for n in (1, 2)]
        return said(*(str(call.content) for call in await ctx.calls(asked)))

    async with flow(calls, executor=executor(twice)).stream({}) as events:
        ids = {event.call_id async for event in events if isinstance(event, CallEnded)}
    assert events.result.unwrap().log == ("2", "4")
    assert len(ids) == 2
