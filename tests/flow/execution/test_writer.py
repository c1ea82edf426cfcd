"""Records of a thread are written in their order, several at once, and never lost."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from toolcell.core import StoreUnavailableError
from toolcell.flow import START, Flow, Graph, MemoryCheckpointer, scatter
from toolcell.flow.execution.journal import TaskJournal
from toolcell.flow.execution.writer import JournalWriter
from toolcell.flow.spi import Checkpointer
from toolcell.flow.stores.base import Lease
from toolcell.flow.stores.records import Checkpoint, Finish, ThreadHead

pytestmark = pytest.mark.anyio
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Gated(MemoryCheckpointer):
    """A store whose writes wait, and are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = anyio.Event()
        self.writes: list[int] = []

    async def append(
        self, lease: Lease, records: Sequence[bytes], head: ThreadHead | None = None
    ) -> None:
        self.writes.append(len(records))
        await self.gate.wait()
        await super().append(lease, records, head)


async def opened(store: Checkpointer) -> Lease:
    first = Checkpoint(id="0", step=0, at=NOW, state={}, next=[])
    head = ThreadHead(
        thread_id="t",
        graph="g",
        version="",
        shape="",
        agent=None,
        status="running",
        checkpoint="0",
        created=NOW,
        updated=NOW,
    )
    return await store.create(head, first.to_bytes())


def end(op: str) -> Finish:
    return Finish(task="1.0", op=op, kind="once", name="f", value=op)


@pytest.mark.parametrize("lasting", [False, True])
async def test_records_that_come_meanwhile_are_written_together(lasting: bool) -> None:
    store, journal = Gated(), TaskJournal("1.0", {})
    writer = JournalWriter(store, await opened(store))

    async def write(op: str) -> None:
        await writer.write(journal, [end(op)], lasting=lasting)
        assert op in journal.finished

    async with anyio.create_task_group() as group:
        writer.group = group
        group.start_soon(write, "0")
        await anyio.wait_all_tasks_blocked()
        for op in "123":
            group.start_soon(write, op)
        await anyio.wait_all_tasks_blocked()
        writer.write_later(journal, end("4"))
        store.gate.set()
        await writer.flush()
    stored = await store.read("t")
    assert stored is not None
    assert (store.writes, len(stored.journal)) == ([1, 4], 5)
    assert set(journal.finished) == set("01234")


async def test_a_task_that_is_cancelled_leaves_its_record() -> None:
    store, journal = Gated(), TaskJournal("1.0", {})
    writer = JournalWriter(store, await opened(store))
    async with anyio.create_task_group() as group:
        writer.group = group
        for op in "01":
            with anyio.move_on_after(0) as scope:
                await writer.write(journal, [end(op)])
            assert scope.cancelled_caught
        store.gate.set()
        await writer.flush()
    assert list(journal.finished) == ["0", "1"]


async def test_records_are_dropped_until_they_are_being_written() -> None:
    store, journal = Gated(), TaskJournal("1.0", {})
    writer = JournalWriter(store, await opened(store))
    async with anyio.create_task_group() as group:
        writer.group = group
        writer.write_later(journal, end("0"))
        await anyio.wait_all_tasks_blocked()
        writer.write_later(journal, end("1"))
        group.start_soon(writer.drop)
        await anyio.wait_all_tasks_blocked()
        store.gate.set()
    assert list(journal.finished) == ["0"]
    assert store.writes == [1]


class Items(BaseModel):
    seen: tuple[str, ...] = ()


set_by_a_node: ContextVar[str] = ContextVar("set_by_a_node", default="nothing")


@pytest.mark.parametrize("several", [False, True])
async def test_a_node_s_context_variables_are_its_own(several: bool) -> None:
    graph, found = Graph(Items, name="g"), list[str]()

    @graph.node
    async def first() -> Any:
        await anyio.lowlevel.checkpoint()
        set_by_a_node.set("first")
        await anyio.lowlevel.checkpoint()
        assert set_by_a_node.get() == "first"
        return scatter("second", range(20 if several else 1))

    @graph.node
    async def second(item: int) -> None:
        found.append(set_by_a_node.get())
        set_by_a_node.set("second")

    graph.edge(START, "first")
    (await Flow(graph).run({})).unwrap()
    assert set(found) == {"nothing"}
    assert len(found) == (20 if several else 1)


class Broken(MemoryCheckpointer):
    """A store that takes no records of a journal."""

    async def append(self, *args: Any, **options: Any) -> None:
        raise StoreUnavailableError("it does not answer")


async def test_a_store_that_fails_ends_the_run() -> None:
    graph = Graph(Items, name="g")

    @graph.node
    async def split() -> Any:
        return scatter("worker", range(3))

    @graph.node
    async def worker(item: int) -> None:
        await anyio.sleep_forever() if item else None

    graph.edge(START, "split")
    with pytest.raises(StoreUnavailableError):
        await Flow(graph, checkpointer=Broken()).run({})
