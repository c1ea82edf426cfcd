"""Records are asked for by their end, its reason and their words, in each store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from toolcell.tools import Records, SQLiteRecords
from toolcell.tools.spi import MemoryRecords
from toolcell.tools.stores.record_filter import MAX_SEARCHED
from toolcell.tools.stores.sqlite_search import (
    BYTES_AT_ONCE,
    TAKEN_AT_ONCE,
    take_in,
    unindexed,
)

from . import plain_records
from .plain_records import NOON

pytestmark = pytest.mark.promise("D4")


record = partial(plain_records.record, tool_name="note")
RECORDS = [
    record("plain", arguments={"text": "Größe of the café"}),
    record("joined", arguments={"path": "reports/2026-q3.csv", "n": 42}),
    record("asian", arguments={"text": "東京都の天気"}),
    record("program", tool_name="run_python", result={"status": "out_of_memory"}),
    record("done", tool_name="run_python", result={"status": "ok", "stdout": "café"}),
    record("liar", result={"status": "timeout"}),
    record("odd", tool_name="run_python", result={"status": ["timeout"]}),
    record("failed", status="error", error_detail="ValueError: no such customer"),
    record("refused", status="denied", verdict="denied", reason="budget"),
    record("other", agent_id='b" OR facts : "', status="denied", reason="policy"),
    record("deep", arguments={"a": [{"b": [["needle"], 10**400]}, None, True]}),
    record("late", started_at=NOON + timedelta(hours=5), arguments={"text": "late"}),
    record("odd-signs", arguments={"a": "Nil\0after\x7fdel snake_Case\tTab"}),
    record("long", arguments={"text": "x " * MAX_SEARCHED + "unseen"}),
]
IDS = [each.call_id for each in RECORDS]


@pytest.fixture(scope="module", params=["memory", "indexed", "new", "partly indexed"])
def records(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Records]:
    if request.param == "memory":
        store: Any = MemoryRecords()
    else:
        store = SQLiteRecords(tmp_path_factory.mktemp("records") / "records.db")
    for place, each in enumerate(RECORDS):
        store.add(each)
        if request.param == "partly indexed" and place == 7:
            with store._file.transaction() as database:
                take_in(database, 3)
    if request.param == "indexed":
        for number in range(TAKEN_AT_ONCE):
            store.add(record(f"more{number}", agent_id="filler", tool_name="filler"))
    yield store
    if request.param != "memory":
        store.close()


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        ({"status": "out_of_memory"}, ["program"]),
        ({"status": "ok", "tool_name": "run_python"}, ["done", "odd"]),
        ({"status": "timeout"}, []),
        ({"status": "denied"}, ["refused", "other"]),
        ({"status": "denied", "reason": "budget"}, ["refused"]),
        ({"reason": "policy", "agent_id": 'b" OR facts : "'}, ["other"]),
        ({"text": "GROSSE cafe"}, ["plain"]),
        ({"text": "cafe"}, ["plain", "done"]),
        ({"text": "cafe", "tool_name": "run_python"}, ["done"]),
        ({"text": "caf"}, []),
        ({"text": "2026-q3.csv"}, ["joined"]),
        ({"text": "q3.2026"}, []),
        ({"text": "42 reports"}, ["joined"]),
        ({"text": "天気"}, ["asian"]),
        ({"text": "needle true"}, ["deep"]),
        ({"text": "customer ValueError"}, ["failed"]),
        ({"text": "after DEL case tab nil"}, ["odd-signs"]),
        ({"text": "snake_case"}, ["odd-signs"]),
        ({"text": "joined"}, ["joined"]),
        ({"text": "unseen"}, []),
        ({"text": '" OR words : "needle'}, []),
        ({"text": "needle", "call_id": "deep"}, ["deep"]),
        ({"text": "needle", "call_id": "plain"}, []),
        ({"text": "late", "since": NOON + timedelta(hours=1)}, ["late"]),
        ({"text": "late", "until": NOON + timedelta(hours=1)}, []),
        ({"tool_name": "note", "since": NOON + timedelta(minutes=1)}, ["late"]),
        ({"agent_id": "a", "until": NOON}, []),
        ({"text": "!!", "call_id": "late"}, ["late"]),
    ],
)
def test_records_are_found(
    records: Records, wanted: dict[str, Any], ids: list[str]
) -> None:
    assert [each.call_id for each in records.query(**wanted)] == ids


def test_pages_of_a_search_follow_each_other(records: Records) -> None:
    seen, before = [], None
    while page := records.page(before=before, agent_id="a", limit=3):
        seen += [each.record.call_id for each in page]
        before = page[-1].number

    assert seen == [each for each in reversed(IDS) if each != "other"]


def test_what_is_deleted_is_not_found(tmp_path: Path) -> None:
    clock = [NOON.timestamp()]
    path = tmp_path / "records.db"
    store = SQLiteRecords(path, keep_days=1, clock=lambda: clock[0])
    store.add(record("old", arguments={"text": "needle"}))
    assert len(store.query(text="needle")) == 1
    clock[0] += 3 * 86_400
    for number in range(200):
        later = NOON + timedelta(days=3)
        store.add(record(str(number), started_at=later))
    assert store.query(text="needle") == []
    with store._file.transaction() as database:
        counts = [
            database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("tool_search", "tool_records")
        ]
    store.close()

    assert counts == [191, 200]


def file_of_before(path: Path) -> None:
    """Make a file of which no record is in the index."""
    store = SQLiteRecords(path, keep_days=1_000)
    for number in range(1_000):
        text = "needle" if number == 0 else "hay"
        store.add(record(str(number), arguments={"text": text}))
    with store._file.transaction() as database:
        database.execute("DELETE FROM tool_search")
        database.execute("DELETE FROM tool_hours")
    store.close()


def test_a_file_of_before_is_open_at_once_and_read_into_the_index(
    tmp_path: Path,
) -> None:
    path = tmp_path / "records.db"
    file_of_before(path)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("BEGIN IMMEDIATE")
        store = SQLiteRecords(path, busy_seconds=0.1)
        # Nothing can be written to the index, and all is found.
        assert [each.call_id for each in store.query(text="needle")] == ["0"]
        with store._reading.transaction("DEFERRED") as database:
            assert unindexed(database) == 1_000
    store._indexing.join(60)
    with store._reading.transaction("DEFERRED") as database:
        assert unindexed(database) <= TAKEN_AT_ONCE
    assert [each.call_id for each in store.query(text="needle")] == ["0"]
    store.close()


def test_a_file_is_closed_before_all_is_in_the_index(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    file_of_before(path)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("BEGIN IMMEDIATE")
        store = SQLiteRecords(path, busy_seconds=0.1)
        store.close()
        assert not store._indexing.is_alive()


def test_a_record_that_cannot_be_read_costs_no_other_one(tmp_path: Path) -> None:
    store = SQLiteRecords(tmp_path / "records.db")
    store.add(record("broken"))
    with store._file.transaction() as database:
        database.execute("UPDATE tool_records SET body = '{}'")
    for number in range(TAKEN_AT_ONCE):
        store.add(record(str(number), arguments={"text": "needle"}))
    with store._reading.transaction("DEFERRED") as database:
        assert unindexed(database) < TAKEN_AT_ONCE
    found = store.query(text="needle", limit=1_000)
    store.close()

    assert len(found) == TAKEN_AT_ONCE


def test_an_old_file_of_large_records_is_taken_in_by_parts(tmp_path: Path) -> None:
    store = SQLiteRecords(tmp_path / "records.db")
    for number in range(TAKEN_AT_ONCE):
        store.add(record(str(number), result="x" * 20_000))
    with store._file.transaction() as database:
        database.execute("DELETE FROM tool_search")
        take_in(database, TAKEN_AT_ONCE)
        rest = unindexed(database)
    store.close()

    assert (TAKEN_AT_ONCE - rest - 1) * 20_000 <= BYTES_AT_ONCE


def test_the_index_takes_in_a_bounded_part_of_large_records(tmp_path: Path) -> None:
    store = SQLiteRecords(tmp_path / "records.db")
    for number in range(TAKEN_AT_ONCE):
        store.add(record(str(number), result="x" * 20_000))
        with store._reading.transaction("DEFERRED") as database:
            assert unindexed(database) * 20_000 <= BYTES_AT_ONCE
    store.close()
