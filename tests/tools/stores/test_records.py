"""Records: what is kept, found and dropped, in memory and in a file."""

from __future__ import annotations

import gc
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import InvalidInputError, StoreUnavailableError
from toolcell.tools import Records, SQLiteRecords
from toolcell.tools.spi import MemoryRecords

from . import plain_records
from .plain_records import NOON

record = partial(
    plain_records.record,
    arguments={"a": 1, "b": [2, {"c": "ü"}]},
    duration_ms=1.5,
    result={"sum": 3},
    usage={"wall_ms": 2, "usd": "0.010"},
    backend="loop",
)


@pytest.mark.promise("GR-13", "GR-14")
def test_a_record_comes_back_as_it_was(records: Records) -> None:
    failed = record(
        "2",
        status="error",
        error_kind="tool.execution",
        error_detail="Traceback ...",
        attempt=2,
        final=False,
        replayed=True,
        still_running=True,
    )
    records.add(record())
    records.add(failed)

    assert records.all_records() == [record(), failed]
    assert records.get_record("2") == failed
    assert records.get_record("nothing") is None
    assert record().cost_usd == "0.010"


@pytest.mark.promise("R56")
def test_half_a_character_in_a_traceback_loses_no_record(records: Records) -> None:
    records.add(record(error_detail="ValueError: no file 'a\udcff'"))

    [found] = records.all_records()
    assert found.error_detail in (
        "ValueError: no file 'a\udcff'",
        "ValueError: no file 'a\\udcff'",
    )


def test_the_latest_attempt_of_a_call_is_its_record(records: Records) -> None:
    for attempt in (1, 2, 3):
        records.add(record(attempt=attempt))
    records.add(record("other"))
    found = records.get_record("1")

    assert found is not None
    assert found.attempt == 3
    assert [r.attempt for r in records.query(call_id="1")] == [1, 2, 3]


def test_ids_of_different_agents_are_kept_apart(records: Records) -> None:
    records.add(record("1", agent_id="a", result="of a"))
    records.add(record("1", agent_id="b", result="of b"))
    found = [records.get_record("1", agent_id=agent) for agent in ("a", "b")]

    assert [each.result for each in found if each] == ["of a", "of b"]


@pytest.mark.promise("RG-32")
@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        ({}, ["1", "2", "3", "4"]),
        ({"agent_id": "b"}, ["3"]),
        ({"tool_name": "mul"}, ["2"]),
        ({"status": "denied"}, ["4"]),
        ({"parent_id": "1"}, ["2", "3"]),
        ({"parent_id": "1", "agent_id": "b"}, ["3"]),
        ({"since": NOON + timedelta(seconds=1)}, ["2", "3"]),
        ({"until": NOON + timedelta(seconds=1)}, ["1", "4"]),
        ({"since": NOON, "until": NOON}, []),
        ({"limit": 2}, ["3", "4"]),
        ({"limit": 0}, []),
        ({"agent_id": "' OR 1=1 --"}, []),
    ],
)
def test_records_can_be_asked_for(
    records: Records, wanted: dict[str, Any], ids: list[str]
) -> None:
    records.add(record("1"))
    later = NOON + timedelta(seconds=1)
    records.add(record("2", tool_name="mul", parent_id="1", started_at=later))
    records.add(record("3", agent_id="b", parent_id="1", started_at=later))
    records.add(record("4", status="denied", verdict="denied"))

    assert [each.call_id for each in records.query(**wanted)] == ids


@pytest.mark.parametrize(
    "wanted",
    [
        {"limit": -1},
        {"since": NOON.replace(tzinfo=None)},
        {"until": NOON.replace(tzinfo=None)},
    ],
)
def test_a_bad_question_is_refused(records: Records, wanted: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        records.query(**wanted)


def test_memory_is_bounded_and_says_what_it_dropped() -> None:
    records = MemoryRecords(max_records=2)
    for number in range(5):
        records.add(record(str(number)))

    assert [each.call_id for each in records.all_records()] == ["3", "4"]
    assert records.dropped == 3


def test_records_in_memory_are_nothing_for_the_garbage_collector() -> None:
    records = MemoryRecords(max_records=1_000)
    gc.collect()
    gc.disable()
    try:
        before = gc.get_count()[0]
        for number in range(500):
            records.add(record(str(number), arguments={"a": [1, {"b": 2}]}))
        grown = gc.get_count()[0] - before
    finally:
        gc.enable()

    assert grown < 50
    assert len(records.all_records()) == 500


def test_records_in_memory_cannot_be_changed() -> None:
    records, arguments = MemoryRecords(), {"a": [1]}
    records.add(record("1", arguments=arguments))
    arguments["a"].append(2)
    records.all_records()[0].arguments["b"] = 3  # type: ignore[index]

    assert records.all_records() == [record("1", arguments={"a": [1]})]


@pytest.mark.parametrize(
    "odd", [{"error_detail": "\udc80"}, {"usage": {"tokens": 10**5_000}}]
)
def test_memory_has_also_what_json_cannot_hold(odd: dict[str, Any]) -> None:
    records = MemoryRecords()
    records.add(record("1", **odd))
    records.add(record("2"))

    assert records.page(before=2) == [(1, record("1", **odd))]
    assert records.all_records() == [record("1", **odd), record("2")]


def test_a_file_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    script = """
import os, sys
from datetime import UTC, datetime
from toolcell.tools import SQLiteRecords, ToolExecutionRecord
SQLiteRecords(sys.argv[1]).add(ToolExecutionRecord(
    call_id="1", tool_name="add", agent_id=None, parent_id=None, tool_version=None,
    arguments={}, verdict="unguarded", status="ok", started_at=datetime.now(UTC),
    duration_ms=1.0))
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-I", "-c", script, path], check=False)
    assert done.returncode == -9
    records = SQLiteRecords(path)

    assert [each.call_id for each in records.all_records()] == ["1"]
    records.close()


def test_two_open_files_share_records(tmp_path: Path) -> None:
    one, two = (SQLiteRecords(tmp_path / "records.db") for _ in range(2))
    one.add(record("1"))
    two.add(record("2"))

    assert [each.call_id for each in one.all_records()] == ["1", "2"]
    one.close()
    two.close()


def test_a_file_that_cannot_be_used_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError) as raised:
        SQLiteRecords(tmp_path / "no" / "folder.db")

    # A model may come to read it.
    assert str(tmp_path) not in str(raised.value)


def test_a_locked_file_is_a_typed_error_and_heals(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    records = SQLiteRecords(path, busy_seconds=0.01)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError):
        records.add(record("1"))
    other.execute("ROLLBACK")
    records.add(record("2"))

    assert [each.call_id for each in records.all_records()] == ["2"]
    other.close()
    records.close()


@pytest.mark.promise("F12")
def test_a_file_keeps_records_for_so_many_days(tmp_path: Path) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    clock = [now.timestamp()]
    path = tmp_path / "records.db"
    records = SQLiteRecords(path, keep_days=2, clock=lambda: clock[0])
    for number in range(1500):
        records.add(record(call_id=f"old {number}", started_at=now))
    clock[0] += 3 * 86_400

    left = [1500]
    for number in range(250):
        late = datetime.fromtimestamp(clock[0], UTC)
        records.add(record(call_id=f"new {number}", started_at=late))
        left.append(len(records.all_records()))
    records.close()
    assert max(before - after for before, after in pairwise(left)) < 1000
    # Those since the last look at most are over.
    assert left[-1] <= 250
    assert left[-1] > 200


@pytest.mark.promise("R55", "R56")
def test_refused_calls_of_an_agent_fill_so_many_bytes(tmp_path: Path) -> None:
    """They push out their own kind alone: not what ran, and not another agent's."""
    path = tmp_path / "records.db"
    clock = [NOON.timestamp()]
    options: dict[str, Any] = {"refused_mib": 0.25, "clock": lambda: clock[0]}
    one, two = (SQLiteRecords(path, **options) for _ in range(2))
    refused: dict[str, Any] = {"verdict": "denied", "arguments": {"a": "é" * 1_000}}
    one.add(record("ran"))
    one.add(record("of b", agent_id="b", **refused))
    for number in range(600):
        (one, two)[number % 2].add(record(f"{number}", **refused))
        if number % 50 == 0:
            kept = one.query(agent_id="a", limit=1_000)
            size = sum(len(str(each.arguments).encode()) for each in kept)
            assert size < 0.25 * 1_048_576

    assert [each.call_id for each in kept[:1]] == ["ran"]
    assert kept[-1].call_id == "550" and len(kept) > 10
    assert one.get_record("of b") is not None

    # What went with the days is not counted any more.
    clock[0] += 40 * 86_400
    for number in range(200):
        one.add(record(f"late {number}", started_at=NOON + timedelta(days=40)))
    [left] = one._file._connection.execute(
        "SELECT total(bytes) FROM tool_refused_bytes"
    ).fetchone()
    for opened in (one, two):
        opened.close()
    assert left == 0
