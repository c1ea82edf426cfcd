"""A full disk, a loss of power, changed bytes: an error, or the right state."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolcell.core import StoreUnavailableError, ThreadBusyError, ToolcellError
from toolcell.flow import Flow, SQLiteCheckpointer, interrupt

from ...support.flow.graphs import Log, chain, said
from ...support.guard.lost_power import copy_as_lost
from ...support.guard.store_table import sizes

pytestmark = pytest.mark.anyio


def one(state: Log) -> dict[str, Any]:
    return said("one" * 2_000)


def two(state: Log) -> dict[str, Any]:
    return said("two" * 2_000)


def ask(state: Log) -> dict[str, Any]:
    return said(str(interrupt("go on?")))


def flow(store: SQLiteCheckpointer) -> Flow[Log]:
    return Flow(chain(one, two, ask), checkpointer=store)


DONE = ("one" * 2_000, "two" * 2_000, "yes")


async def ended(store: SQLiteCheckpointer) -> tuple[str, ...]:
    """Return the log of the thread, run to its end from wherever it is."""
    threads = flow(store)
    if await store.read("t") is None:
        await threads.run({}, "t")
    result = await threads.resume("t")
    answers = {each.interrupt_id: "yes" for each in result.interrupts}
    return (await threads.resume("t", answers)).unwrap().log


@pytest.mark.parametrize("power_safe", [True, False])
async def test_on_a_full_disk_a_thread_stops_and_goes_on_later(
    power_safe: bool, tmp_path: Path
) -> None:
    path = tmp_path / "t.db"
    async with SQLiteCheckpointer(path, power_safe=power_safe) as store:
        [pages] = store._file.execute("PRAGMA page_count").fetchone()
        failures = 0
        for more in range(40):
            store._file.execute(f"PRAGMA max_page_count = {pages + more}")
            try:
                log = await ended(store)
                break
            except StoreUnavailableError:
                failures += 1

        assert failures > 2
        assert log == DONE
        history = [each.checkpoint_id for each in await flow(store).history("t", 9)]
        assert history == ["3", "2", "1", "0"]


@pytest.mark.promise("T33")
@pytest.mark.parametrize("power_safe", [True, False])
async def test_a_file_that_was_busy_leaves_its_threads_to_all(
    power_safe: bool, tmp_path: Path
) -> None:
    """Somebody holds the file for longer than a run waits; then anyone may go on."""
    path = tmp_path / "t.db"
    options: dict[str, Any] = {"power_safe": power_safe, "busy_seconds": 0.05}
    async with (
        SQLiteCheckpointer(path, **options) as store,
        SQLiteCheckpointer(path, **options) as elsewhere,
    ):
        await flow(store).run({}, "mine")
        await flow(store).run({}, "theirs")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            for thread in ("mine", "theirs"):
                lease = await store.claim(thread)
                other.execute("BEGIN EXCLUSIVE")
                with pytest.raises(StoreUnavailableError):
                    await store.release(lease)
                other.execute("ROLLBACK")

        assert (await flow(store).resume("mine")).status == "interrupted"
        with anyio.fail_after(60):
            while True:
                with contextlib.suppress(ThreadBusyError):
                    await elsewhere.claim("theirs")
                    break
                await anyio.sleep(0.05)


@pytest.mark.parametrize("losses", sizes(8, 300, 1200))
async def test_a_file_that_lost_power_is_as_it_once_was(
    losses: int, tmp_path: Path
) -> None:
    """Whatever of the log reached the disk, the thread goes on to the same end."""
    path, left = tmp_path / "t.db", tmp_path / "left.db"
    seen = set()
    async with SQLiteCheckpointer(path) as store:
        await flow(store).run({}, "t")
        for number in range(losses):
            chance = random.Random(number)
            copy_as_lost(path, left, chance)
            async with SQLiteCheckpointer(left) as again:
                stored = await again.read("t")
                seen.add(None if stored is None else stored.head.checkpoint)
                assert await ended(again) == DONE
            for made in tmp_path.glob("left.db*"):
                made.unlink()

    assert len(seen) > 1


CELLS = [
    ("flow_threads", "head"),
    ("flow_threads", "sum"),
    ("flow_threads", "chain"),
    ("flow_checkpoints", "record"),
    ("flow_checkpoints", "sum"),
    ("flow_journal", "record"),
    ("flow_answers", "record"),
    ("flow_answers", "sum"),
]


@pytest.fixture
async def paused(tmp_path: Path) -> Path:
    """Return a store with a thread that waits, and an answer that it has not taken."""
    path = tmp_path / "paused.db"
    async with SQLiteCheckpointer(path, power_safe=False) as store:
        result = await flow(store).run({}, "t")
        question = result.interrupts[0].interrupt_id
        await flow(store).answer("t", question, "yes", by="anna")
    return path


def damage(
    path: Path, table: str, column: str, change: Callable[[bytes], bytes]
) -> None:
    """Change one cell of the last row of a table."""
    with closing(sqlite3.connect(path)) as database, database:
        row, value = database.execute(
            f"SELECT rowid, {column} FROM {table} ORDER BY rowid DESC LIMIT 1"
        ).fetchone()
        database.execute(
            f"UPDATE {table} SET {column} = ? WHERE rowid = ?", [change(value), row]
        )
    database.close()


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(cell=st.sampled_from(CELLS), place=st.floats(0, 0.999), bit=st.integers(0, 7))
async def test_a_bit_that_changed_is_an_error_and_never_another_state(
    cell: tuple[str, str], place: float, bit: int, paused: Path, tmp_path: Path
) -> None:
    def flip(value: bytes) -> bytes:
        made = bytearray(value)
        made[int(place * len(made))] ^= 1 << bit
        return bytes(made)

    path = tmp_path / "t.db"
    shutil.copyfile(paused, path)
    damage(path, *cell, flip)

    with pytest.raises(ToolcellError):
        async with SQLiteCheckpointer(path, power_safe=False) as store:
            await flow(store).resume("t")
