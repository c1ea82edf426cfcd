"""State that another toolcell wrote: an older one is read, a newer one refused.

`tests/support/older_files` has the files of a host as 0.1.0 wrote them before its
release: one call, one approval that was used, a token, and a thread that waits.
"""

from __future__ import annotations

import ast
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from toolcell.core import ConfigError, StoreUnavailableError, ToolcellError
from toolcell.core.storage.sqlite import FORMAT
from toolcell.flow import END, START, Flow, Graph, SQLiteCheckpointer, interrupt
from toolcell.guard import ApprovalStore, SQLiteStore, verify_audit
from toolcell.host import Host, HostConfig
from toolcell.host.http.tokens import TokenStore
from toolcell.host.operator.audit_anchors import HeadFile
from toolcell.host.operator.people_file import PeopleFile
from toolcell.host.operator.pictures import Pictures
from toolcell.host.runtime.backup import MANIFEST, back_up, restore
from toolcell.host.webhooks.queue import MessageQueue
from toolcell.tools import SQLiteIdempotency, SQLiteRecords
from toolcell.tools.spi import SQLiteSessionEnds

from ..support.paths import ROOT, TESTS

pytestmark = pytest.mark.anyio
OLDER = TESTS / "support" / "older_files"
TOKEN = "tcl_8a1549ea62562289_ZA3vmLK6PcffOmaFikF3pw2COMdt7hEERsWwlQn4Bzs"
"""Of the file here, and good for nothing."""

FILES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "guard.db": ("guard/stores/sqlite_file.py", SQLiteStore),
    "approvals.db": ("guard/approvals/store.py", ApprovalStore),
    "records.db": ("tools/stores/sqlite_file.py", SQLiteRecords),
    "idempotency.db": ("tools/stores/sqlite_file.py", SQLiteIdempotency),
    "sessions.db": ("tools/stores/sqlite_file.py", SQLiteSessionEnds),
    "flows.db": ("flow/stores/sqlite.py", SQLiteCheckpointer),
    "tokens.db": ("host/http/tokens.py", TokenStore),
    "people.db": ("host/operator/people_file.py", PeopleFile),
    "heads.db": ("host/operator/audit_anchors.py", HeadFile),
    "pictures.db": (
        "host/operator/pictures.py",
        lambda path: Pictures(path, days=1.0),
    ),
    "webhooks.db": ("host/webhooks/queue.py", lambda path: MessageQueue(path, 0.0)),
}
"""Each database of a host, the module that opens it, and its store."""


async def close(store: Any) -> None:
    for name in ("aclose", "close", "__exit__"):
        if hasattr(store, name):
            ended = getattr(store, name)()
            if ended is not None:
                await ended
            return


def test_every_database_is_in_the_table() -> None:
    """A new one has to say here how an older toolcell's is read."""
    rooms = ("core", "sandbox", "cluster", "guard", "tools", "flow", "host")
    openers = {
        path.relative_to(ROOT).as_posix()
        for room in rooms
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("open_sqlite", "open_state_file")
    }

    own_ways = {"host/config/state_file.py"}
    assert openers - own_ways == {module for module, _ in FILES.values()}


@pytest.mark.parametrize("name", FILES)
async def test_a_new_file_says_its_format(name: str, tmp_path: Path) -> None:
    store = FILES[name][1](tmp_path / name)
    await close(store)
    with closing(sqlite3.connect(tmp_path / name)) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (FORMAT,)


@pytest.mark.parametrize("name", FILES)
async def test_a_newer_file_is_refused_and_stays(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE of_tomorrow (id)")
        file.execute(f"PRAGMA user_version = {FORMAT + 1}")
    before = path.read_bytes()
    with pytest.raises((ConfigError, StoreUnavailableError)):
        FILES[name][1](path)

    with closing(sqlite3.connect(path)) as file:
        tables = file.execute("SELECT name FROM sqlite_schema").fetchall()
        assert tables == [("of_tomorrow",)]
        assert file.execute("PRAGMA user_version").fetchone() == (FORMAT + 1,)
    assert path.read_bytes()[100:] == before[100:]


class Order(BaseModel):
    item: str = ""
    shipped: bool = False


graph = Graph(Order, name="order")


@graph.node
def ship(state: Order) -> dict[str, Any]:
    return {"shipped": interrupt({"question": f"ship {state.item}?"}, answer=bool)}


graph.edge(START, "ship").edge("ship", END)


@pytest.fixture(params=[0, 1], ids=["format 0", "format 1"])
def older(request: pytest.FixtureRequest, tmp_path: Path) -> HostConfig:
    """The state of an older host, in files of the format that they had."""
    state = tmp_path / "state"
    state.mkdir()
    for dump in OLDER.glob("*.sql"):
        with closing(sqlite3.connect(state / f"{dump.stem}.db")) as file:
            file.executescript(dump.read_text())
            file.execute(f"PRAGMA user_version = {request.param}")
    shutil.copy(OLDER / "audit.jsonl", tmp_path)
    budget = {"unit": "calls", "limit": 5, "window": "total"}
    return HostConfig.model_validate(
        {
            "tools": {"builtin": ["arithmetic", "clock"]},
            "state": {"folder": state, "records_days": 36_500},
            "audit": {"path": tmp_path / "audit.jsonl"},
            "policies": [
                {
                    "agent_id": "a",
                    "allow": ["calculate"],
                    "ask": ["get_today_date"],
                    "budgets": [budget],
                }
            ],
        }
    )


async def test_what_an_older_host_wrote_is_read_and_gone_on_with(
    older: HostConfig,
) -> None:
    folder = older.state.folder
    assert folder is not None and older.audit.path is not None
    async with Host(older, environ={}) as host:
        result = await host.call("calculate", {"expression": "6*7"}, agent_id="a")
        records = host.executor.records.query()
        [request] = await host.approvals.recent()
        left = await host.guard.remaining("a", "calculate")
    calls = [record.call_id for record in records]

    assert result.content == 42
    assert len(calls) == 3 and {"c1", "c2"} < set(calls)
    assert request.status == "used" and request.approver == "Ann"
    # Two calls were charged before, and one now.
    assert list(left.values()) == [2]
    assert verify_audit(older.audit.path).ok

    with closing(sqlite3.connect(folder / "tokens.db")) as file:
        [made_at] = file.execute("SELECT created_at FROM tokens").fetchone()
    with TokenStore(folder / "tokens.db", clock=lambda: made_at + 1) as tokens:
        found = tokens.find(TOKEN)
    assert found is not None and found.agent_id == "a"

    threads = SQLiteCheckpointer(folder / "flows.db")
    flow = Flow(graph, checkpointer=threads)
    done = await flow.resume("order-1", {"int_835f52f1dd072a55": True})
    await threads.aclose()
    assert done.unwrap() == Order(item="books", shipped=True)

    for path in folder.glob("*.db"):
        with closing(sqlite3.connect(path)) as file:
            assert file.execute("PRAGMA user_version").fetchone() == (FORMAT,), path


async def test_a_log_of_another_form_is_refused_and_stays(older: HostConfig) -> None:
    assert older.audit.path is not None
    text = '{"format":2,"seq":1,"hash":"x"}\n'
    older.audit.path.write_text(text)
    with pytest.raises(ToolcellError, match="audit log"):
        async with Host(older, environ={}):
            pass

    assert older.audit.path.read_text() == text


def test_a_backup_of_another_format_is_not_brought_back(
    older: HostConfig, tmp_path: Path
) -> None:
    back_up(older, tmp_path / "backup")
    manifest = tmp_path / "backup" / MANIFEST
    text = manifest.read_text()
    manifest.write_text(text.replace('"format": 1', '"format": 2'))
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "audit.jsonl").unlink()
    with pytest.raises(ConfigError, match="format"):
        restore(older, tmp_path / "backup")
    assert not (tmp_path / "state" / "guard.db").exists()
    # A backup from before there were formats.
    manifest.write_text(text.replace('"format": 1,', ""))
    assert restore(older, tmp_path / "backup").format == 1
