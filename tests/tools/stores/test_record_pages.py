"""Pages of records by number, and the sums of usage by hour."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from toolcell.tools import Records, SQLiteRecords
from toolcell.tools.stores.sqlite_search import FOUND

from .plain_records import NOON, record

HOUR = timedelta(hours=1)


def test_pages_follow_each_other_without_gap_or_overlap(records: Records) -> None:
    for number in range(25):
        agent = "ab"[number % 2]
        records.add(record(str(number), agent_id=agent, parent_id="outer"))
    seen, before = [], None
    while page := records.page(before=before, agent_id="a", parent_id="outer", limit=5):
        # What comes meanwhile moves no page.
        records.add(record("late", agent_id="a", parent_id="outer"))
        seen += [each.record.call_id for each in page]
        before = page[-1].number

    assert seen == [str(number) for number in range(24, -1, -2)]
    assert records.page(before=1) == []


def test_the_rule_of_a_refusal_stays(records: Records) -> None:
    records.add(record(status="denied", verdict="denied", rule="a.deny[0]"))

    assert records.page()[0].record.rule == "a.deny[0]"


def test_usage_is_summed_by_hour_and_agent(records: Records) -> None:
    used = {"wall_ms": 5, "cpu_ms": 3, "bytes": 7, "tokens": 11, "usd": "0.25"}
    records.add(record(usage=used))
    records.add(record(usage=used, status="timeout", started_at=NOON + HOUR / 2))
    records.add(record(status="denied", verdict="denied", agent_id="b"))
    # It ends in the next hour.
    last = NOON + HOUR - timedelta(milliseconds=1)
    records.add(record(started_at=last, duration_ms=2.0, agent_id=None))
    noon = int(NOON.timestamp())

    assert records.usage_hours(since=NOON) == [
        (noon, "a", 2, 0, 1, 10, 6, 14, 22, 0.5),
        (noon, "b", 1, 1, 0, 0, 0, 0, 0, 0.0),
        (noon + 3600, "", 1, 0, 0, 0, 0, 0, 0, 0.0),
    ]
    assert len(records.usage_hours(since=NOON + HOUR)) == 1
    assert [h.agent_id for h in records.usage_hours(since=NOON, agent_id="b")] == ["b"]


def test_amounts_of_any_size_are_summed(records: Records) -> None:
    """A tool reports its own cost: the record must not be lost for it."""
    for _ in range(3):
        records.add(record(usage={"tokens": 10**30, "usd": "9999999999.9"}))

    [hour] = records.usage_hours(since=NOON)
    assert (hour.calls, hour.tokens) == (3, 3 * 10**12)


def test_sums_are_forgotten_with_their_records(tmp_path: Path) -> None:
    clock = [NOON.timestamp()]
    path = tmp_path / "records.db"
    store = SQLiteRecords(path, keep_days=2, clock=lambda: clock[0])
    store.add(record())
    clock[0] += 3 * 86_400
    for _ in range(100):
        store.add(record(started_at=NOON + timedelta(days=3)))

    [left] = store.usage_hours(since=NOON - HOUR)
    assert left.hour == clock[0]
    store.close()


def test_records_of_a_file_of_before_are_found(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    body = (
        '{"call_id": "1", "tool_name": "add", "agent_id": "a", "parent_id": null,'
        ' "tool_version": null, "arguments": {}, "verdict": "denied", "status":'
        ' "denied", "started_at": "2026-03-01T12:00:00+00:00", "duration_ms": 1.0}'
    )
    with closing(sqlite3.connect(path)) as old, old:
        old.executescript(
            """
            CREATE TABLE tool_records (
                number INTEGER PRIMARY KEY AUTOINCREMENT, call_id TEXT NOT NULL,
                parent_id TEXT, agent_id TEXT, tool_name TEXT NOT NULL,
                status TEXT NOT NULL, started_at REAL NOT NULL, body TEXT NOT NULL);
            CREATE INDEX tool_records_agent ON tool_records (agent_id, tool_name);
            CREATE INDEX tool_records_status ON tool_records (status);
            """
        )
        for number in range(7, 3_007):
            old.execute(
                "INSERT INTO tool_records VALUES (?, '1', NULL, 'a', 'add', 'denied',"
                " 1772366400, ?)",
                [number, body],
            )
    for _ in range(2):
        store = SQLiteRecords(path)
        found = store.page(status="denied", until=NOON + HOUR, limit=5_000)
        store.close()
        assert [each.number for each in found] == list(range(3_006, 6, -1))
        assert found[-1].record.rule is None


def test_each_filter_has_an_index(tmp_path: Path) -> None:
    """A page is found without a look at records that do not fit."""
    path = tmp_path / "records.db"
    SQLiteRecords(path).close()
    with closing(sqlite3.connect(path)) as new:
        for source, test, index in (
            ("tool_records", "parent_id = 'x'", "USING INDEX"),
            ("tool_records", "call_id = 'x'", "USING INDEX"),
            (FOUND, "tool_search MATCH 'x'", "VIRTUAL TABLE INDEX"),
        ):
            table = source.split()[0]
            plan = new.execute(
                f"EXPLAIN QUERY PLAN SELECT body FROM {source} WHERE {test}"
                f" AND {table}.rowid < 9 ORDER BY {table}.rowid DESC"
            ).fetchall()
            assert index in plan[0][3], plan
            assert not [each for each in plan if "TEMP B-TREE" in each[3]], plan
