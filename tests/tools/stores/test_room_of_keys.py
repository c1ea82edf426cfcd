"""Keys of calls: the room that agents and their results may take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcell.core import (
    InvalidInputError,
    StoreUnavailableError,
    ToolExecutionError,
    ToolResult,
)
from toolcell.tools import SQLiteIdempotency
from toolcell.tools.spi import MemoryIdempotency
from toolcell.tools.stores.idempotency import CallBody

from .conftest import Clock

pytestmark = pytest.mark.anyio
PAY_1, PAY_2 = (CallBody("pay", {"amount": amount}) for amount in (1, 2))
DONE = ToolResult(call_id="1", name="pay", content={"paid": "0.10"})


@pytest.mark.promise("R43")
async def test_an_agent_that_has_all_its_keys_is_refused_and_nobody_else(
    clock: Clock,
) -> None:
    keys = MemoryIdempotency(max_entries=2, ttl_seconds=60, clock=clock)
    mine, theirs = (CallBody("pay", {}, agent) for agent in "ab")
    for name in ("a1", "a2"):
        await keys.claim(name, mine, repeatable=False)
        keys.finish(name, DONE)
        clock.now += 1

    with pytest.raises(StoreUnavailableError, match="still remembered") as caught:
        keys.take("a3", mine, repeatable=False)
    assert caught.value.details["retry_after"] == 58
    assert await keys.claim("a1", mine, repeatable=False) == DONE
    assert keys.take("b1", theirs, repeatable=False)
    clock.now += 58
    assert keys.take("a3", mine, repeatable=False)
    assert await keys.claim("a2", mine, repeatable=False) == DONE


@pytest.mark.promise("R43")
async def test_many_calls_of_others_forget_no_key() -> None:
    keys = MemoryIdempotency(max_entries=10)
    await keys.claim("pay-1", CallBody("pay", {}, "b"), repeatable=False)
    keys.finish("pay-1", DONE)
    for number in range(10):
        body = CallBody("add", {}, f"a{number % 2}")
        await keys.claim(f"{number}", body, repeatable=False)
        keys.finish(f"{number}", DONE)

    body = CallBody("pay", {}, "b")
    assert await keys.claim("pay-1", body, repeatable=False) == DONE


def large(number: int) -> ToolResult:
    return ToolResult(call_id=f"{number}", name="pay", content="x" * 100_000)


@pytest.fixture(params=["memory", "sqlite"])
def narrow(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[MemoryIdempotency | SQLiteIdempotency]:
    if request.param == "memory":
        yield MemoryIdempotency(max_bytes=1_000_000)
    else:
        store = SQLiteIdempotency(tmp_path / "keys.db", max_bytes=1_000_000)
        yield store
        store.close()


@pytest.mark.promise("A13")
async def test_results_take_no_more_room_than_they_may(
    narrow: MemoryIdempotency | SQLiteIdempotency,
) -> None:
    for number in range(200):
        key = f"k{number}"
        assert await narrow.claim(key, PAY_1, repeatable=False) is None
        narrow.finish(key, large(number))
    if isinstance(narrow, MemoryIdempotency):
        ended = narrow._ended[""].values()
        assert narrow._bytes == sum(len(each.entry) for each in ended) <= 1_000_000
    else:
        with narrow._file.transaction() as database:
            [kept] = database.execute(
                "SELECT sum(length(result)) FROM idempotency_keys"
            ).fetchone()
        assert (kept or 0) <= 1_100_000

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
    assert (keys._bytes, keys._whole, keys._ended) == (0, {}, {})
    keys.forget("k19")
