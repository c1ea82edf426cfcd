"""What keeps threads: one writer, all or nothing, and nothing changed unnoticed."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import (
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    InvalidInputError,
    StoreUnavailableError,
    ThreadBusyError,
)
from toolcell.flow import SQLiteCheckpointer, interrupt
from toolcell.flow.spi import Checkpointer
from toolcell.flow.stores.reading import read_journal
from toolcell.tools.spi import check_checkpointer

from ...support.child import Child
from ...support.flow.graphs import Log, flow, said
from ...support.flow.store_table import STORES, stores

pytestmark = pytest.mark.anyio


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Checkpointer]:
    with stores(request.param) as open_one:
        yield open_one()


@pytest.mark.promise("LC-06", "LC-07", "LC-08", "LC-09")
async def test_a_checkpointer_keeps_the_contract(store: Checkpointer) -> None:
    """The protocol of `toolcell.core`, by the suite that others can run."""
    async with store:
        await check_checkpointer(store)
        assert store.capabilities.persistent_checkpoint_ids is store.durable
        with pytest.raises(CheckpointError, match="of this id"):
            await store.save({}, "a", "mine")
        with pytest.raises(CheckpointError, match="in between"):
            await store.save({}, "new", after="mine")
        assert await store.load("new") is None


@pytest.mark.promise("LC-07", "LC-08")
async def test_a_flows_threads_are_no_saved_states(store: Checkpointer) -> None:
    def one(state: Log) -> dict[str, Any]:
        return said("one")

    async with store:
        await flow(one, checkpointer=store).run({}, "t")
        for work in (store.load("t"), store.save({}, "t")):
            with pytest.raises(InvalidInputError, match="a Flow runs"):
                await work
        await store.save({}, "saved")
        assert len(await flow(one, checkpointer=store).threads()) == 1


@pytest.mark.promise("LC-08")
async def test_a_saved_state_that_was_changed_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with SQLiteCheckpointer(path, power_safe=False) as store:
        await store.save({"n": "good"}, "t")
        with closing(sqlite3.connect(path)) as database, database:
            assert _damaged(
                database,
                "UPDATE flow_checkpoints SET record = replace(record, 'good', 'evil')",
            )
        with pytest.raises(CheckpointSerializationError):
            await store.load("t")


async def test_texts_of_every_kind_come_back(store: Checkpointer) -> None:
    def odd(state: Log) -> dict[str, Any]:
        return {"note": "\x00\u00e4\u2028\U0001f600", "log": ("x" * 1_000_000,)}

    async with store:
        kept = flow(odd, checkpointer=store)
        done = await kept.run({}, "t")

        assert await kept.state("t") == done.unwrap()
        assert done.unwrap().note == "\x00\u00e4\u2028\U0001f600"


DAMAGE = [
    "UPDATE flow_checkpoints SET record = replace(record, '\"one\"', '\"ONE\"')",
    "UPDATE flow_journal SET record = replace(record, 'a?', 'b?')",
    "UPDATE flow_threads SET head = replace(head, 'interrupted', 'done')",
    "UPDATE flow_answers SET record = replace(record, '5', '6')",
    "DELETE FROM flow_journal WHERE number = 0",
    "DELETE FROM flow_checkpoints WHERE number = 0",
    "DELETE FROM flow_checkpoints WHERE number = 1",
    "UPDATE flow_checkpoints SET number = number + 1 WHERE number = 1",
]


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_row_that_was_changed_or_lost_is_found(
    damage: str, tmp_path: Path
) -> None:
    def one(state: Log) -> dict[str, Any]:
        return said("one")

    def ask(state: Log) -> None:
        interrupt("a?")

    path = tmp_path / "t.db"
    async with SQLiteCheckpointer(path, power_safe=False) as store:
        kept = flow(one, ask, checkpointer=store)
        paused = await kept.run({}, "t")
        await kept.answer("t", paused.interrupts[0].interrupt_id, 5, by="anna")
    with closing(sqlite3.connect(path)) as database, database:
        assert _damaged(database, damage)
    async with SQLiteCheckpointer(path) as store:
        with pytest.raises((CheckpointSerializationError, CheckpointNotFoundError)):
            await flow(one, ask, checkpointer=store).resume("t")


def _damaged(database: sqlite3.Connection, damage: str) -> int:
    def replace(text: bytes, old: str, new: str) -> bytes:
        return text.replace(old.encode(), new.encode())

    database.create_function("replace", 3, replace)
    return database.execute(damage).rowcount


async def test_records_of_a_newer_version_or_of_other_keys_are_refused() -> None:
    good = b'{"v":1,"type":"redo","task":"1.0","ops":[]}'

    assert read_journal(good).task == "1.0"
    with pytest.raises(CheckpointSerializationError, match="version 2") as caught:
        read_journal(good.replace(b'"v":1', b'"v":2'))
    assert "newer toolcell" in (caught.value.hint or "")
    for bad in (
        good.replace(b'"ops"', b'"opz"'),
        good.replace(b"[]", b"5"),
        good.replace(b"redo", b"other"),
        good[:-1],
        b"[]",
        b'{"v":1,"type":"task","task":"1.0","status":"done","ms":1,"output":'
        b'{"goto":[{"node":5}]}}',
    ):
        with pytest.raises(CheckpointSerializationError):
            read_journal(bad)


async def test_a_file_is_its_owners_alone(tmp_path: Path) -> None:
    async with SQLiteCheckpointer(tmp_path / "t.db"):
        mode = stat.S_IMODE(os.stat(tmp_path / "t.db").st_mode)

    assert mode == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["t.db"]


async def test_a_file_that_cannot_be_had_is_one_typed_error(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError):
        SQLiteCheckpointer(tmp_path / "nowhere" / "t.db")
    (tmp_path / "text").write_text("no database, and longer than a header" * 10)
    with pytest.raises(StoreUnavailableError):
        SQLiteCheckpointer(tmp_path / "text")
    async with SQLiteCheckpointer(tmp_path / "t.db") as store:
        (tmp_path / "t.db").unlink()
        with pytest.raises(StoreUnavailableError):
            await store.read("t")


OWNER = """
import sys, anyio
from toolcell.flow import Flow, Graph, START, SQLiteCheckpointer
from pydantic import BaseModel
class State(BaseModel):
    n: int = 0
graph = Graph(State, name="chain")
@graph.node
async def one(state: State):
    print("inside", flush=True)
    await anyio.sleep_forever()
graph.edge(START, "one")
async def main():
    async with SQLiteCheckpointer(sys.argv[1]) as store:
        await Flow(graph, checkpointer=store).run({}, "t")
anyio.run(main)
"""


async def test_a_thread_of_a_process_that_was_killed_is_free_at_once(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.db"
    command = [sys.executable, "-I", "-c", OWNER, str(path)]
    with Child(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "inside\n"
        async with SQLiteCheckpointer(path) as store:
            with pytest.raises(ThreadBusyError):
                await store.claim("t")
            owner.send_signal(signal.SIGKILL)
            owner.wait()
            lease = await store.claim("t")
            assert lease.token == 2
            await store.release(lease)
