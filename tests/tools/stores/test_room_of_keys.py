"""Keys of calls: the room that agents and their results may take."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import (
    InvalidInputError,
    StoreUnavailableError,
    ToolExecutionError,
    ToolResult,
)
from toolcell.tools import SQLiteIdempotency
from toolcell.tools.spi import MemoryIdempotency
from toolcell.tools.stores import memory_idempotency, sqlite_idempotency
from toolcell.tools.stores.idempotency import CallBody

from .conftest import Clock

pytestmark = pytest.mark.anyio
PAY_1, PAY_2 = (CallBody("pay", {"amount": amount}) for amount in (1, 2))
DONE = ToolResult(call_id="1", name="pay", content={"paid": "0.10"})


MakeKeys = Callable[..., MemoryIdempotency | SQLiteIdempotency]


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeKeys]:
    """Make a store with the room that is given."""
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> MemoryIdempotency | SQLiteIdempotency:
            if request.param == "memory":
                return MemoryIdempotency(**options)
            store = SQLiteIdempotency(tmp_path / "keys.db", **options)
            stack.callback(store.close)
            return store

        yield make


@pytest.mark.promise("R43")
async def test_an_agent_that_has_all_its_keys_is_refused_and_nobody_else(
    make: MakeKeys, clock: Clock
) -> None:
    keys = make(max_entries=3, ttl_seconds=60, clock=clock)
    mine, theirs = (CallBody("pay", {}, agent) for agent in "ab")
    for end, name in ((keys.finish, "a1"), (keys.finish, "a2"), (None, "a3")):
        await keys.claim(name, mine, repeatable=False)
        if end is None:
            keys.doubt(name)
        else:
            end(name, DONE)
        clock.now += 1

    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="still remembered") as caught:
            keys.take("a4", mine, repeatable=False)
        assert caught.value.details["retry_after"] == 57
    assert await keys.claim("a1", mine, repeatable=False) == DONE
    assert keys.take("b1", theirs, repeatable=False)
    # A second run of a call that may be repeated takes no more room.
    assert keys.take("a3", mine, repeatable=True)
    keys.finish("a3", DONE)
    clock.now += 57
    assert keys.take("a4", mine, repeatable=False)
    assert await keys.claim("a2", mine, repeatable=False) == DONE


@pytest.mark.promise("R43")
async def test_many_calls_of_others_forget_no_key(make: MakeKeys) -> None:
    keys = make(max_entries=10)
    await keys.claim("pay-1", CallBody("pay", {}, "b"), repeatable=False)
    keys.finish("pay-1", DONE)
    for number in range(10):
        body = CallBody("add", {}, f"a{number % 2}")
        await keys.claim(f"{number}", body, repeatable=False)
        keys.finish(f"{number}", DONE)

    body = CallBody("pay", {}, "b")
    assert await keys.claim("pay-1", body, repeatable=False) == DONE


@pytest.mark.promise("R43")
async def test_large_results_of_others_drop_nothing_of_an_agent(make: MakeKeys) -> None:
    keys = make(max_bytes=1_000_000)
    body = CallBody("pay", {}, "b")
    for number in range(3):
        await keys.claim(f"b{number}", body, repeatable=False)
        keys.finish(f"b{number}", large(number))
    for number in range(100):
        other = CallBody("pay", {}, f"a{number % 2}")
        await keys.claim(f"a{number}", other, repeatable=False)
        keys.finish(f"a{number}", large(number))

    for number in range(3):
        result = await keys.claim(f"b{number}", body, repeatable=False)
        assert result is not None and result.content == large(number).content
    with pytest.raises(ToolExecutionError, match="ran already"):
        await keys.claim("a0", CallBody("pay", {}, "a0"), repeatable=False)


@pytest.mark.promise("R43")
async def test_results_that_expired_drop_nothing_of_an_agent(
    make: MakeKeys, clock: Clock
) -> None:
    keys = make(ttl_seconds=60, max_bytes=1_000_000, clock=clock)
    body = CallBody("pay", {}, "b")
    for number in range(2):
        assert keys.take(f"b{number}", body, repeatable=False)
    for number in range(9):
        other = CallBody("pay", {}, f"a{number}")
        assert keys.take(f"a{number}", other, repeatable=False)
        keys.finish(f"a{number}", large(number))
    clock.now += 61
    for number in range(2):
        keys.finish(f"b{number}", large(number))

    for number in range(2):
        result = await keys.claim(f"b{number}", body, repeatable=False)
        assert result is not None and result.content == large(number).content
    # Agents of which nothing is stored take no room.
    assert set(counted(keys)) == {"b"}


@pytest.mark.promise("R43")
async def test_a_new_result_is_stored_whatever_others_have(make: MakeKeys) -> None:
    keys = make(max_bytes=1_000_000)
    small = CallBody("pay", {}, "b")
    assert keys.take("small", small, repeatable=False)
    keys.finish("small", large(1))
    for number in range(21):
        # Each is of the agent that has most.
        content = "x" * (950_000 if number == 0 else 100_000 + number)
        body = CallBody("pay", {}, f"a{number}")
        assert keys.take(f"{number}", body, repeatable=False)
        keys.finish(f"{number}", ToolResult(call_id="1", name="pay", content=content))
        again = await keys.claim(f"{number}", body, repeatable=False)
        assert again is not None and again.content == content
        if number == 0:
            # It takes no room from an agent that has less than its part.
            assert await keys.claim("small", small, repeatable=False) is not None

    sizes = [size for _, size in counted(keys).values()]
    assert 800_000 < sum(sizes) <= 1_000_000 + max(sizes)


async def test_keys_that_expired_are_deleted_a_few_at_once(
    make: MakeKeys, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = make(ttl_seconds=60, max_entries=5, clock=clock)
    for number in range(5):
        assert keys.take(f"k{number}", PAY_1, repeatable=False)
        keys.finish(f"k{number}", DONE)
    clock.now += 61

    for most, name in ((0, "new"), (2, "k4"), (2, "k3")):
        monkeypatch.setattr(memory_idempotency, "_REMOVED_AT_ONCE", most)
        monkeypatch.setattr(sqlite_idempotency, "_DELETED_AT_ONCE", most)
        before = ended(keys)
        assert keys.take(name, PAY_2, repeatable=False)
        assert before - most >= ended(keys) >= before - most - 1
    assert counted(keys) == sums(keys)


def test_keys_of_an_older_file_are_of_no_agent(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    with contextlib.closing(sqlite3.connect(path)) as older:
        older.execute(
            "CREATE TABLE idempotency_keys (key TEXT PRIMARY KEY, body TEXT NOT NULL,"
            " state TEXT NOT NULL, owner TEXT NOT NULL, result TEXT, expires_at REAL)"
            " WITHOUT ROWID"
        )
        rows = [(f"{number}", "", "done", "", "{}", 9e9) for number in range(3)]
        insert = "INSERT INTO idempotency_keys VALUES (?, ?, ?, ?, ?, ?)"
        older.executemany(insert, rows)
        older.commit()

    with contextlib.closing(SQLiteIdempotency(path, max_entries=1)) as keys:
        of_none: dict[Any, tuple[int, int]] = {b"": (3, 6)}
        assert counted(keys) == of_none
        assert keys.take("new", PAY_1, repeatable=False)
    # An older toolcell cannot write it any more, and so has to refuse it.
    with contextlib.closing(sqlite3.connect(path)) as file:
        with pytest.raises(sqlite3.OperationalError, match="7 columns"):
            file.executemany(insert, rows)
        assert file.execute("PRAGMA user_version").fetchone() > (1,)


@pytest.mark.promise("R43")
async def test_keys_of_agents_are_counted_as_they_come_and_go(
    make: MakeKeys, clock: Clock
) -> None:
    keys = make(ttl_seconds=60, max_bytes=500_000, clock=clock)
    bodies = [CallBody("pay", {}, agent) for agent in ("a", "b", "")]
    for number in range(30):
        key, body = f"k{number}", bodies[number % 3]
        assert keys.take(key, body, repeatable=False)
        ends = [
            lambda key=key: keys.finish(key, large(1)),
            lambda key=key: keys.doubt(key),
            lambda key=key: keys.forget(key),
        ]
        ends[number % 4 % 3]()
        if keys.take("again", body, repeatable=True):
            keys.doubt("again")
    assert counted(keys) == sums(keys)
    clock.now += 61
    for number, body in enumerate(bodies):
        assert keys.take(f"new{number}", body, repeatable=False)
        keys.forget(f"new{number}")
    assert counted(keys) == sums(keys) == {}


def counted(
    keys: MemoryIdempotency | SQLiteIdempotency,
) -> dict[str, tuple[int, int]]:
    """Return what a store counts: keys and bytes of results by agent."""
    if isinstance(keys, MemoryIdempotency):
        return {
            name: (len(each.ended), each.bytes) for name, each in keys._agents.items()
        }
    with keys._file.transaction() as database:
        rows = database.execute("SELECT * FROM idempotency_agents").fetchall()
    return {agent: (count, size) for agent, count, size in rows}


def ended(keys: MemoryIdempotency | SQLiteIdempotency) -> int:
    """Return how many keys are stored whose runs ended."""
    if isinstance(keys, MemoryIdempotency):
        return sum(len(each.ended) for each in keys._agents.values())
    with keys._file.transaction() as database:
        row = database.execute(
            "SELECT count(*) FROM idempotency_keys WHERE state <> 'running'"
        ).fetchone()
    return int(row[0])


def sums(keys: MemoryIdempotency | SQLiteIdempotency) -> dict[str, tuple[int, int]]:
    """Return the same, summed over what is stored."""
    if isinstance(keys, MemoryIdempotency):
        found = {
            name: (
                len(each.ended),
                sum(len(each.ended[key].entry) for key in each.whole),
            )
            for name, each in keys._agents.items()
        }
        assert keys._bytes == sum(size for _, size in found.values())
        return found
    with keys._file.transaction() as database:
        rows = database.execute(
            "SELECT agent, count(*), coalesce(sum(length(result)), 0)"
            " FROM idempotency_keys GROUP BY agent"
        ).fetchall()
    return {agent: (count, size) for agent, count, size in rows}


def large(number: int) -> ToolResult:
    return ToolResult(call_id=f"{number}", name="pay", content="x" * 100_000)


@pytest.mark.promise("A13")
async def test_results_take_no_more_room_than_they_may(make: MakeKeys) -> None:
    narrow = make(max_bytes=1_000_000)
    for number in range(60):
        key = f"k{number}"
        assert await narrow.claim(key, PAY_1, repeatable=False) is None
        narrow.finish(key, large(number))
        assert sum(size for _, size in counted(narrow).values()) <= 1_000_000
        assert await narrow.claim(key, PAY_1, repeatable=False) is not None
    assert counted(narrow) == sums(narrow)
    # No more are dropped than have to be.
    assert sum(size for _, size in counted(narrow).values()) > 850_000

    # What ran is not run again, and another call under its id is still an error.
    with pytest.raises(ToolExecutionError, match="ran already") as caught:
        await narrow.claim("k0", PAY_1, repeatable=False)
    assert caught.value.details["outcome"] == "done"
    with pytest.raises(InvalidInputError, match="another call"):
        await narrow.claim("k0", PAY_2, repeatable=False)
    # What may be repeated is.
    assert await narrow.claim("k1", PAY_1, repeatable=True) is None
    narrow.finish("k1", DONE)
    assert await narrow.claim("k1", PAY_1, repeatable=True) == DONE


@pytest.mark.promise("A13")
async def test_arguments_count_as_well_and_doubt_stays() -> None:
    keys = MemoryIdempotency(max_bytes=100_000)
    body = CallBody("pay", {"note": "x" * 200_000})
    assert await keys.claim("k", body, repeatable=False) is None
    keys.doubt("k")

    assert keys._bytes < 1000
    with pytest.raises(ToolExecutionError, match="half-way"):
        await keys.claim("k", body, repeatable=False)
    assert await keys.claim("k", body, repeatable=True) is None
    keys.forget("k")


def test_room_is_free_again_when_keys_expire(clock: Clock) -> None:
    keys = MemoryIdempotency(ttl_seconds=60, clock=clock)
    for number in range(20):
        assert keys.take(f"k{number}", PAY_1, repeatable=False)
        keys.finish(f"k{number}", large(number))
    clock.now += 61
    # The first look at a key that is known frees all that is over.
    assert keys.take("k19", PAY_1, repeatable=False)
    assert (keys._bytes, keys._agents) == (0, {})
    keys.forget("k19")
