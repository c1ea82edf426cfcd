"""A graph in a graph whose store is lost at each of its writes, one after the other."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from toolcell.core import StoreUnavailableError
from toolcell.flow import (
    START,
    Flow,
    FlowResult,
    Graph,
    MemoryCheckpointer,
    NodeContext,
    interrupt,
)
from toolcell.flow.spi import InterruptValue
from toolcell.tools import tool

from ...support.flow.graphs import Log, chain, said
from ...support.sample_tools import executor

pytestmark = pytest.mark.anyio


class Lost(MemoryCheckpointer):
    """A store that does not answer from one of its writes on."""

    def __init__(self, lost_at: int, *, after: bool) -> None:
        super().__init__()
        self.lost_at: int | None = lost_at
        self._after = after
        self._writes = 0

    async def _write(self, work: Any, *args: Any, **options: Any) -> Any:
        self._writes += 1
        lost = self.lost_at is not None and self._writes >= self.lost_at
        if lost and not (self._after and self._writes == self.lost_at):
            raise StoreUnavailableError("lost")
        done = await work(*args, **options)
        if lost:
            raise StoreUnavailableError("lost")
        return done

    async def append(self, *args: Any, **options: Any) -> None:
        await self._write(super().append, *args, **options)

    async def commit(self, *args: Any, **options: Any) -> None:
        await self._write(super().commit, *args, **options)


def victim(effects: list[str]) -> tuple[Graph[Log], Any]:
    @tool
    def note(text: str) -> str:
        """Note a text."""
        effects.append(text)
        return text

    async def first(state: Log, ctx: NodeContext) -> dict[str, Any]:
        await ctx.call("note", text="first")
        return said("first")

    async def asks(state: Log, ctx: NodeContext) -> dict[str, Any]:
        await ctx.call("note", text="asks")
        return said(interrupt("name?"))

    graph: Graph[Any] = chain(first, asks, name="c")
    for name in ("b", "a"):
        outer = Graph(Log, name=name)
        outer.node(graph, name="inner")
        outer.edge(START, "inner")
        graph = outer
    return graph, executor(note)


def truth(question: InterruptValue, effects: list[str]) -> Any:
    if question.kind == "question":
        return "anna"
    payload: Any = question.payload
    text = payload["arguments"]["text"]
    if text in effects:
        return {"outcome": "done", "content": text}
    return {"outcome": "again"}


async def to_the_end(flow: Flow[Log], effects: list[str]) -> FlowResult[Log]:
    result = await flow.resume("t", steal=True)
    for _ in range(5):
        if result.status == "done":
            break
        answers = {q.interrupt_id: truth(q, effects) for q in result.interrupts}
        result = await flow.resume("t", answers)
    return result


@pytest.mark.promise("flow-44")
@pytest.mark.parametrize("after", [False, True])
async def test_nothing_inside_is_lost_or_done_twice(after: bool) -> None:
    lost_at = 1
    while True:
        effects: list[str] = []
        graph, made = victim(effects)
        store = Lost(lost_at, after=after)
        flow = Flow(graph, checkpointer=store, executor=made)
        with suppress(StoreUnavailableError):
            paused = await flow.run({}, "t")
            [question] = paused.interrupts
            await flow.resume("t", {question.interrupt_id: "anna"})
        was_lost = store._writes >= lost_at
        store.lost_at = None
        result = await to_the_end(
            Flow(graph, checkpointer=store, executor=made), effects
        )

        assert result.unwrap().log == ("first", "anna"), lost_at
        assert effects == ["first", "asks"], lost_at
        if not was_lost:
            break
        lost_at += 1
    assert lost_at > 10
