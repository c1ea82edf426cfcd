"""A store that is lost during a call ends the run with one error."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

from toolcell.core import StoreUnavailableError
from toolcell.flow import (
    END,
    START,
    Flow,
    Graph,
    MemoryCheckpointer,
    NodeContext,
)

from ...support.flow.graphs import Log, chain
from ...support.sample_tools import executor

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("lost", range(1, 6))
@pytest.mark.promise("C2")
async def test_a_store_that_fails_during_a_call_ends_the_run(lost: int) -> None:
    """The run ends with the store's one error; the node sees no other."""
    seen: list[BaseException] = []

    class Failing(MemoryCheckpointer):
        left = lost

        async def append(self, *args: Any, **options: Any) -> None:
            self.left -= 1
            if self.left == 0:
                raise StoreUnavailableError("away", hint="wait")
            await super().append(*args, **options)

    async def calls(state: Log, context: NodeContext) -> None:
        try:
            for _ in range(3):
                await context.call("add", a=1, b=2)
        except Exception as error:
            seen.append(error)
            raise

    store = Failing()
    flow_ = Flow(chain(calls), checkpointer=store, executor=executor())
    with pytest.raises(StoreUnavailableError):
        await flow_.run({}, "t")
    assert seen == [] or [type(each) for each in seen] == [StoreUnavailableError]
    assert (await flow_.resume("t")).status in ("done", "interrupted")


@pytest.mark.parametrize("works", range(3))
@pytest.mark.promise("C2")
async def test_many_calls_that_lose_their_store_are_one_error(works: int) -> None:
    class Failing(MemoryCheckpointer):
        left = works

        async def append(self, *args: Any, **options: Any) -> None:
            await anyio.lowlevel.checkpoint()
            if self.left <= 0:
                raise StoreUnavailableError("away", hint="wait")
            self.left -= 1
            await super().append(*args, **options)

    async def calls(state: Log, context: NodeContext) -> None:
        async with anyio.create_task_group() as group:
            for n in range(4):
                call = partial(context.call, "add", key=f"{n}", a=n, b=2)
                group.start_soon(call)

    graph = Graph(Log, name="wide")
    for name in ("left", "right"):
        graph.node(calls, name=name)
        graph.edge(START, name)
        graph.edge(name, END)
    flow_ = Flow(graph, checkpointer=Failing(), executor=executor())
    with pytest.raises(StoreUnavailableError):
        await flow_.run({}, "t")
