"""One thread that cannot go on stops no other, and none is forgotten."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import (
    CheckpointSerializationError,
    InvalidInputError,
    ToolcellError,
)
from toolcell.flow import (
    Flow,
    MemoryCheckpointer,
    NodeContext,
    SQLiteCheckpointer,
    StoredThreads,
    interrupt,
)
from toolcell.tools import tool

from ..support.flow.graphs import Log, chain, flow, only, said
from ..support.sample_tools import executor

pytestmark = pytest.mark.anyio


def ask(state: Log) -> dict[str, Any]:
    return said(str(interrupt("go on?")))


def gift(state: Log) -> dict[str, Any]:
    return said(str(interrupt("which one?")))


async def answer(flow_: Flow[Log], thread: str, value: str = "yes") -> None:
    [question] = await flow_.interrupts(thread)
    await flow_.answer(thread, question.interrupt.interrupt_id, value, by="anna")


@pytest.mark.promise("C4")
async def test_a_thread_that_fits_no_longer_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryCheckpointer()
    old, new = (Flow(chain(node), checkpointer=store) for node in (gift, ask))
    await new.run({}, "fits")
    await old.run({}, "unfit")
    await answer(new, "fits")
    await answer(old, "unfit")

    assert [each.thread_id for each in await new.recover()] == ["fits"]
    assert await new.recover() == []
    [named] = [message for message in caplog.messages if "unfit" in message]
    assert "thread unfit is passed over" in named
    assert "no node 'gift' any more" in named


@pytest.mark.promise("C5")
async def test_an_answered_thread_is_found_among_any_number() -> None:
    flow_ = flow(ask)
    for number in range(150):
        await flow_.run({}, f"t{number}")
    await answer(flow_, "t0")

    assert [each.thread_id for each in await flow_.recover()] == ["t0"]


@pytest.mark.promise("C5")
async def test_more_threads_than_the_limit_go_on_the_next_time() -> None:
    flow_ = flow(ask)
    for number in range(5):
        await flow_.run({}, f"t{number}")
        await answer(flow_, f"t{number}")

    assert [len(await flow_.recover(limit=2)) for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.promise("C5")
async def test_paused_threads_are_not_read_in_vain() -> None:
    read: list[str] = []

    class Watched(MemoryCheckpointer):
        async def read(self, thread_id: str, checkpoint_id: str | None = None) -> Any:
            read.append(thread_id)
            return await super().read(thread_id, checkpoint_id)

    flow_ = Flow(chain(ask), checkpointer=Watched())
    for number in range(9):
        await flow_.run({}, f"t{number}")
    await answer(flow_, "t3")
    read.clear()
    await flow_.recover()

    assert set(read) == {"t3"}


@pytest.mark.promise("C6")
async def test_an_answer_after_the_step_is_refused() -> None:
    """It was checked while the question was open, and comes when the step is over."""
    store = MemoryCheckpointer()
    flow_ = Flow(chain(ask), checkpointer=store)
    await flow_.run({}, "t")

    class Late(StoredThreads):
        async def read(self, thread_id: str) -> Any:
            seen = await super().read(thread_id)
            if (await flow_.threads())[0].status == "interrupted":
                await answer(flow_, "t", "in time")
                await flow_.resume("t")
            return seen

    with pytest.raises(InvalidInputError, match="answered before"):
        await Late(store).answer("t", None, "too late", by="ben")
    assert (await flow_.state("t")).log == ("in time",)


@pytest.mark.parametrize("damage", [b"\xff", b"{}", b'{"v": 1, "type": "head"}'])
@pytest.mark.promise("R13")
async def test_a_damaged_head_is_named_and_stops_no_other(
    damage: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with SQLiteCheckpointer(tmp_path / "t.db") as store:
        flow_ = Flow(chain(ask), checkpointer=store)
        for name in ("a", "bad", "c"):
            await flow_.run({}, name)
            await answer(flow_, name)
    with sqlite3.connect(tmp_path / "t.db") as db:
        db.execute("UPDATE flow_threads SET head = ? WHERE thread = 'bad'", [damage])
    db.close()

    async with SQLiteCheckpointer(tmp_path / "t.db") as store:
        flow_, stored = Flow(chain(ask), checkpointer=store), StoredThreads(store)
        assert [thread.thread_id for thread in await flow_.threads(limit=2)] == [
            "c",
            "a",
        ]
        assert sorted(each.thread_id for each in await flow_.recover()) == ["a", "c"]
        assert list(await stored.verify()) == ["bad"]
        with pytest.raises(CheckpointSerializationError):
            await stored.read("bad")
    assert sum("thread bad" in message for message in caplog.messages) == 2
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


@pytest.mark.promise("R16")
async def test_numbers_that_could_not_be_read_again_are_refused() -> None:
    """Python reads no number of more than 4,300 digits."""
    huge = 10**5_000

    def asks(state: Log) -> dict[str, Any]:
        return {"items": [interrupt("how many?", answer=int)]}

    def writes(state: Log) -> dict[str, Any]:
        return {"total": huge}

    def nests(state: Log) -> dict[str, Any]:
        return {"items": [{"n": huge}]}

    def shows(state: Log) -> None:
        interrupt(huge)

    for node in (writes, nests, shows):
        flow_ = flow(node)
        assert (await flow_.run({}, "t")).status == "failed"
        assert (await flow_.state("t")).total == 0
    flow_ = flow(asks)
    paused = await flow_.run({}, "t")
    question = only(paused).interrupt_id
    for refused in (
        lambda: flow_.answer("t", question, huge, by="anna"),
        lambda: flow_.resume("t", {question: huge}),
        lambda: flow_.run({"total": huge}, "new"),
        lambda: flow_.run({}, "new", metadata={"n": huge}),
    ):
        with pytest.raises(ToolcellError):
            await refused()
    result = await flow_.resume("t", {question: 10**4_000})
    assert result.unwrap().items == [10**4_000]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.promise("R32")
@pytest.mark.parametrize(
    ("odd", "is_result"),
    [
        (10**4_299, True),
        (10**4_999, False),
        (nested(150), True),
        ("a\0b", True),
        ("\ud800", False),
        ({"NaN": 1, "": 2}, True),
    ],
    ids=["longest", "too long", "nested", "NUL", "surrogate", "names"],
)
async def test_a_thread_is_read_again_whatever_a_tool_returned(
    tmp_path: Path, odd: Any, is_result: bool
) -> None:
    """What JSON in UTF-8 cannot hold fails the call, and not the thread."""

    @tool
    async def strange() -> Any:
        return odd

    async def node(state: Log, ctx: NodeContext) -> dict[str, Any]:
        return {"items": [(await ctx.call("strange")).content]}

    graph, path = chain(node), tmp_path / "t.db"
    async with SQLiteCheckpointer(path) as store:
        flow_ = Flow(graph, checkpointer=store, executor=executor(strange))
        ended = await flow_.run({}, "t")
        said_then = await flow_.state("t")
    async with SQLiteCheckpointer(path) as store:
        assert not await StoredThreads(store).verify()
        assert await Flow(graph, checkpointer=store).state("t") == said_then

    assert ended.unwrap().items == [odd if is_result else None]
