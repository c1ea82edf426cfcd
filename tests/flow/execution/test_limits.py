"""Each limit: its value passes, one more fails, and a higher one goes on."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from toolcell.core import FlowLimitError
from toolcell.flow import (
    END,
    START,
    Command,
    Flow,
    FlowLimits,
    Graph,
    MemoryCheckpointer,
    NodeContext,
    Send,
    goto,
    interrupt,
)

from ...support.flow.graphs import Log, chain, said

pytestmark = pytest.mark.anyio


def steps() -> Graph[Log]:
    def loop(state: Log) -> Command:
        return goto("loop" if state.total < 3 else END, total=1)

    return chain(loop)


def tasks() -> Graph[Log]:
    def fan(state: Log) -> list[Send]:
        return [Send("worker", {"n": n}) for n in range(4)]

    graph = chain(fan)
    graph.node(lambda n: None, name="worker")
    return graph


def operations() -> Graph[Log]:
    async def many(state: Log, ctx: NodeContext) -> None:
        for _ in range(4):
            await ctx.once(int)

    return chain(many)


def state() -> Graph[Log]:
    def writes(state: Log) -> dict[str, Any]:
        return {"note": "x" * 50}

    return chain(writes)


def output() -> Graph[Log]:
    def returns(state: Log) -> dict[str, Any]:
        return said("x" * 50)

    return chain(returns)


def value() -> Graph[Log]:
    async def keeps(state: Log, ctx: NodeContext) -> None:
        await ctx.once(str, "x" * 120)

    return chain(keeps)


def question() -> Graph[Log]:
    def asks(state: Log) -> None:
        interrupt("x" * 50)

    return chain(asks)


def nested(graphs: int) -> Graph[Log]:
    """Return a graph inside of as many others."""
    inner = chain(said_inside, name="g0")
    for number in range(1, graphs + 1):
        outer = Graph(Log, name=f"g{number}")
        outer.node(inner, name="inner")
        inner = outer.edge(START, "inner")
    return inner


def said_inside(state: Log) -> dict[str, Any]:
    return said("inside")


LIMITS = [
    pytest.param(steps, "max_steps", 4, "more than 3 steps", id="steps"),
    pytest.param(tasks, "max_tasks", 4, "more than 3 tasks", id="tasks"),
    pytest.param(operations, "max_operations", 4, "more than 3 op", id="operations"),
    pytest.param(state, "state_bytes", 53, "more than 52 bytes", id="state"),
    pytest.param(output, "record_bytes", 155, "more than 154 bytes", id="output"),
    pytest.param(value, "record_bytes", 122, "more than 121 bytes", id="value"),
    pytest.param(question, "question_bytes", 52, "more than 51 bytes", id="question"),
    pytest.param(
        functools.partial(nested, 2), "depth", 2, "more than 1 others", id="depth"
    ),
]


@pytest.mark.promise("flow-20")
@pytest.mark.parametrize(("made", "limit", "enough", "why"), LIMITS)
async def test_a_limit_holds_at_its_value_and_can_be_raised(
    made: Any, limit: str, enough: int, why: str
) -> None:
    graph, store = made(), MemoryCheckpointer()
    ends = "interrupted" if made is question else "done"
    held = FlowLimits(**{limit: enough})
    assert (await Flow(graph, limits=held).run({})).status == ends

    few = FlowLimits(**{limit: enough - 1})
    short = Flow(graph, limits=few, checkpointer=store)
    failed = await short.run({}, "t")
    assert failed.status == "failed"
    with pytest.raises(FlowLimitError, match=why) as caught:
        failed.unwrap()
    assert caught.value.details == {"limit": limit, "value": enough - 1}
    assert limit in (caught.value.hint or "")
    assert (await short.resume("t")).status == "failed" or limit == "max_steps"
    again = await Flow(graph, limits=held, checkpointer=store).resume("t")
    assert again.status == ends
