"""`toolcell flow verify`, `prune` and `graph`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from toolcell import flow as threads
from toolcell.flow import SQLiteCheckpointer

from ....conftest import apart
from ....support.flow.graphs import Log, chain
from ..conftest import Command
from .conftest import CONFIG, Flow


@pytest.mark.promise("flow-47")
def test_a_changed_thread_is_found(flow: Flow, command: Command, folder: Path) -> None:
    flow("run", "order", "--thread", "o1", code=5)
    flow("run", "broken", "--thread", "b1", code=1)
    (folder / "my_graphs.py").unlink()
    assert flow("verify") == flow("verify", "o1") == []
    with closing(sqlite3.connect(folder / "state" / "flows.db")) as store, store:
        store.execute(
            "UPDATE flow_checkpoints SET record = CAST(replace(record, 'ship', 'shop')"
            " AS BLOB) WHERE thread = 'o1'"
        )

    [found] = flow("verify", code=1)
    assert found["thread"] == "o1"
    assert command("flow", "verify").out.startswith("o1\t")
    assert flow("verify", "b1") == []
    assert flow("verify", "nobody", code=2)["error"]["kind"] == "checkpoint.not_found"


@pytest.mark.promise("flow-47")
def test_old_threads_are_deleted_and_open_ones_stay(
    flow: Flow, command: Command, folder: Path
) -> None:
    for name in ("o1", "o2"):
        flow("run", "order", "--thread", name, code=5)
        flow("cancel", name)
    flow("run", "order", "--thread", "o3", code=5)
    flow("run", "broken", "--thread", "b1", code=1)
    assert "history_days" in flow("prune", code=2)["error"]["hint"]
    assert flow("prune", "--days", "1") == []
    assert sorted(flow("prune", "--days", "0")) == ["o1", "o2"]
    assert sorted(each["thread"] for each in flow("list")) == ["b1", "o3"]
    assert command("flow", "prune", "--days", "0").out == ""


@pytest.mark.promise("flow-47")
def test_what_is_older_than_the_configuration_keeps_is_deleted(
    flow: Flow, command: Command, folder: Path
) -> None:
    """By `prune` without `--days`, and by `work` on its own."""
    keeps = CONFIG.replace("[flows]", "[flows]\nhistory_days = 2")
    (folder / "toolcell.toml").write_text(keeps)
    flow("run", "order", "--thread", "new", code=5)
    flow("cancel", "new")
    for delete in (("prune",), ("work", "--once")):
        apart(anyio.run, old_thread, folder / "state" / "flows.db")
        assert len(flow("list")) == 2
        assert command("flow", *delete).code == 0
        assert [each["thread"] for each in flow("list")] == ["new"]


async def old_thread(path: Path) -> None:
    """Make a thread that ended three days ago."""
    then = datetime.now(UTC) - timedelta(days=3)
    graph = chain(does_nothing)
    async with SQLiteCheckpointer(path) as store:
        flow = threads.Flow(graph, checkpointer=store, clock=lambda: then)
        assert (await flow.run({}, "old")).status == "done"


def does_nothing(state: Log) -> None: ...


@pytest.mark.promise("flow-47")
def test_a_graph_is_drawn(flow: Flow, command: Command, folder: Path) -> None:
    drawn = flow("graph", "order")
    assert drawn["mermaid"] == command("flow", "graph", "order").out
    assert "ship" in drawn["mermaid"]
    assert flow("graph", "nothing", code=2)["error"]["hint"]
    (folder / "toolcell.toml").write_text(CONFIG.replace('folder = "state"', ""))
    assert flow("graph", "order") == drawn
