"""Nothing depends on the order in which tasks happen to run."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from toolcell.flow import (
    START,
    Command,
    Flow,
    Graph,
    NodeContext,
    Send,
    SendBatch,
    SendResult,
    goto,
    interrupt,
    scatter,
)
from toolcell.flow.spi import resume_with
from toolcell.tools import tool

from ...support.flow.graphs import Log, said
from ...support.sample_tools import executor

pytestmark = pytest.mark.anyio
NOW = datetime(2026, 1, 2, tzinfo=UTC)
SCHEDULES = 50


def shuffled(schedule: random.Random) -> Graph[Log]:
    """Return a graph whose tasks are delayed by a schedule."""
    graph = Graph(Log, name="g")

    async def wait() -> None:
        for _ in range(schedule.randrange(8)):
            await anyio.lowlevel.checkpoint()

    @graph.node
    async def fan(state: Log) -> SendBatch:
        await wait()
        return SendBatch(sends=scatter("worker", range(6)), aggregator_node="gather")

    @graph.node
    async def worker(item: int, ctx: NodeContext) -> Any:
        await wait()
        made = await ctx.call("twice", n=item)
        await wait()
        return [made.content, ctx.random.random()]

    @graph.node
    async def gather(results: list[SendResult]) -> dict[str, Any]:
        return {"items": [result.result for result in results]}

    @graph.node
    async def other(state: Log) -> list[Send]:
        await wait()
        return [Send("plain", {"n": n}) for n in range(4)]

    @graph.node
    async def plain(state: Log, n: int) -> dict[str, Any]:
        await wait()
        return {"log": (f"plain{n}",), "total": n}

    @graph.node
    async def ask(state: Log) -> Command:
        await wait()
        return goto("last", log=(interrupt(f"{state.total}?"),))

    @graph.node
    async def last(state: Log) -> dict[str, Any]:
        return said("last")

    graph.edge(START, ["fan", "other"]).edge(["plain", "gather"], "ask")
    return graph


async def kept(seed: int) -> list[bytes]:
    """Return all checkpoints of a thread that ran by a schedule."""

    @tool
    async def twice(n: int) -> int:
        return 2 * n

    flow = Flow(
        shuffled(random.Random(seed)), executor=executor(twice), clock=lambda: NOW
    )
    paused = await flow.run({}, "t")
    assert paused.status == "interrupted", paused.error
    (await flow.resume("t", resume_with("yes"))).unwrap()
    texts = await flow._store.checkpoints("t", 100)
    return [re.sub(rb'"duration_ms":[0-9.e-]+', b"", text) for text in texts]


async def test_every_schedule_leaves_the_same_checkpoints_but_for_durations() -> None:
    first = await kept(0)

    assert len(first) == 6
    assert b"plain0" in b"".join(first)
    for seed in range(1, SCHEDULES):
        assert await kept(seed) == first, seed
