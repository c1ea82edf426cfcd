"""Forgetting what no longer counts takes a little of many calls, never much of one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from toolcell.guard import MemoryStore, SQLiteStore
from toolcell.guard.stores.base import (
    CORRECTION_MICROSECONDS,
    Charge,
    RateHit,
    Reservation,
)

from ...support.guard.builders import FakeClock

pytestmark = [pytest.mark.anyio, pytest.mark.promise("F9")]

SECOND = 1_000_000
NOTHING = Reservation("", (), (), 0)


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        [found] = database.execute(
            "SELECT (SELECT count(*) FROM hits) + (SELECT count(*) FROM accounts)"
            " + (SELECT count(*) FROM buckets)"
        )
    return int(found[0])


async def test_a_file_of_old_counters_is_swept_a_thousand_rows_at_a_time(
    tmp_path: Path,
) -> None:
    path, clock = tmp_path / "a.db", FakeClock()
    store = SQLiteStore(path, clock=clock)
    for _ in range(3):
        # The first look at each of the three tables.
        await store.peek(NOTHING)
    over, later = round(clock.now) * SECOND, round(clock.now + 900) * SECOND
    with closing(sqlite3.connect(path)) as database, database:
        many = range(2500)
        hits = [(f"k{n % 3}", n, over) for n in many]
        database.executemany("INSERT INTO hits VALUES (?, ?, 1, ?)", hits)
        accounts = [(f"k{n}", int(n == 7), over) for n in many]
        database.executemany("INSERT INTO accounts VALUES (?, 1, ?, ?)", accounts)
        buckets = [(f"k{n}", later if n == 9 else over) for n in many]
        database.executemany("INSERT INTO buckets VALUES (?, ?)", buckets)
    clock.now += 61

    left = [rows(path)]
    while len(left) < 12:
        await store.peek(NOTHING)
        left.append(rows(path))
    await store.aclose()
    assert all(before - after <= 1000 for before, after in pairwise(left))
    # What is held, and what has not run full, stays.
    assert left[-1] == 2


async def test_a_memory_of_old_counters_is_swept_a_thousand_at_a_time() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock, max_keys=5000)
    for number in range(5000):
        hit = RateHit(f"{number}", 1, SECOND)
        assert (await store.reserve(Reservation("", [hit], (), 1))).admitted
    clock.now += 60

    left = [store._size()]
    for number in range(5000):
        hit = RateHit(f"new {number}", 1, 3600 * SECOND)
        assert (await store.reserve(Reservation("", [hit], (), 1))).admitted
        left.append(store._size())
    assert all(before - after < 1000 for before, after in pairwise(left))
    assert left[-1] == 5000


async def test_a_hold_that_ends_costs_no_look_at_all_others() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    line = Charge("slots", 1, 10_000, refund=True)
    for number in range(5000):
        # One ends each microsecond.
        await store.reserve(Reservation(f"{number}", (), [line], SECOND + number))
    looked_at = 0

    class Counted(dict):  # type: ignore[type-arg]
        def get(self, *args: object) -> object:
            nonlocal looked_at
            looked_at += 1
            return super().get(*args)

        def items(self) -> object:  # type: ignore[override]
            nonlocal looked_at
            looked_at += len(self)
            return super().items()

    clock.now += 1
    await store.peek(NOTHING)
    store._holds = Counted(store._holds)
    for _ in range(20):
        clock.now += 0.000_001
        [(_, held, _)] = (await store.peek(Reservation("", (), [line], 1))).levels
    assert held <= 5000 - 20
    assert looked_at < 200


async def test_holds_end_in_their_order_whatever_was_settled_between() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    line = Charge("tokens", 1, 10_000)
    for number in range(3000):
        ends = SECOND * (1 + number % 7)
        await store.reserve(Reservation(f"{number}", (), [line], ends))
        if number % 3 == 0:
            await store.settle(f"{number}", [0])
    for second in range(1, 8):
        clock.now += 1
        [(used, held, _)] = (await store.peek(Reservation("", (), [line], 1))).levels
        over = sum(n % 3 > 0 and n % 7 < second for n in range(3000))
        assert (used, held) == (over, 2000 - over)
    assert await store.settle("1", [0])
    clock.now += CORRECTION_MICROSECONDS / SECOND + 1
    assert not await store.settle("2", [0])
    assert store._holds == {}
