"""Threads of any graph, kept sound and small without the code of their graphs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import CheckpointNotFoundError
from toolcell.flow import (
    END,
    Command,
    SQLiteCheckpointer,
    StoredThreads,
    goto,
    interrupt,
)
from toolcell.flow.spi import StoredThread

from ..support.flow.graphs import Log, flow, said

pytestmark = pytest.mark.anyio
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def counts(state: Log) -> Command:
    note = "x" * 2_000
    return goto("counts" if state.total < 9 else END, total=1, log=(note,))


def asks(state: Log) -> dict[str, Any]:
    return said(interrupt("a?"))


@pytest.mark.parametrize("checkpoint", ["0", "1", "2", "5", "9", "10"])
async def test_a_change_anywhere_in_the_history_is_found(
    checkpoint: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.db"
    async with SQLiteCheckpointer(path, power_safe=False) as store:
        for name in ("one", "two"):
            await flow(counts, checkpointer=store).run({}, name)
        threads = StoredThreads(store)
        assert await threads.verify() == {}
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(
                "UPDATE flow_checkpoints SET record = "
                "CAST(replace(record, '\"turn\":1', '\"turn\":7') AS BLOB)"
                " WHERE thread = 'two' AND id = ?",
                [checkpoint],
            )

        assert [*await threads.verify()] == ["two"]
        assert [*await threads.verify("two")] == ["two"]
        assert await threads.verify("one") == {}
        with pytest.raises(CheckpointNotFoundError):
            await threads.verify("nobody")


async def test_threads_that_ended_long_ago_are_deleted(tmp_path: Path) -> None:
    """Those that could go on, that changed since or that somebody runs are not."""
    now = NOW
    async with SQLiteCheckpointer(tmp_path / "t.db", power_safe=False) as store:
        ends = flow(counts, checkpointer=store, clock=lambda: now)
        waits = flow(asks, checkpointer=store, clock=lambda: now)
        for name in ("old", "held"):
            await ends.run({}, name)
        await waits.run({}, "open")
        await waits.run({}, "cancelled")
        threads = StoredThreads(store, clock=lambda: now)
        await threads.cancel("cancelled", by="anna")
        await store.save({"x": 1}, "saved")
        now += timedelta(days=1)
        await ends.run({}, "new")
        lease = await store.claim("held")

        assert sorted(await threads.prune(now)) == ["cancelled", "old"]
        await store.release(lease)
        assert await threads.prune(now) == ["held"]
        left: StoredThread = await threads.read("open")
        assert left.info.status == "interrupted"
        assert sorted(thread.thread_id for thread in await threads.threads()) == [
            *("new", "open", "saved")
        ]
