"""What every store promises: all or nothing, exact, and settled once."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from toolcell.guard import SQLiteStore, Store
from toolcell.guard.stores.base import (
    CORRECTION_MICROSECONDS,
    Charge,
    RateHit,
    Reservation,
    ReservationOutcome,
)

from ...support.guard.builders import FakeClock
from ...support.guard.store_table import StoreMaker, make_store

__all__ = ["make_store"]
pytestmark = pytest.mark.anyio

SECOND = 1_000_000
HOUR = 3600 * SECOND


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(make_store: StoreMaker, clock: FakeClock) -> AsyncIterator[Store]:
    made = make_store(clock)
    yield made
    await made.aclose()


def want(hold_id: str, *lines: RateHit | Charge, hold: int = HOUR) -> Reservation:
    hits = [line for line in lines if isinstance(line, RateHit)]
    charges = [line for line in lines if isinstance(line, Charge)]
    return Reservation(hold_id, hits, charges, hold)


def budget(amount: int | None, limit: int = 10, *, refund: bool = False) -> Charge:
    return Charge("budget", amount, limit, refund=refund)


async def look(store: Store) -> tuple[int, int]:
    """Return what is used and held of the budget."""
    [(used, held, _)] = (await store.peek(want("", budget(0)))).levels
    return used, held


async def admitted(store: Store, request: Reservation) -> bool:
    return (await store.reserve(request)).admitted


@pytest.mark.promise("RG-24")
async def test_what_fits_exactly_is_admitted(store: Store) -> None:
    assert await admitted(store, want("1", budget(9)))
    assert not await admitted(store, want("2", budget(2)))
    assert await admitted(store, want("3", budget(1)))
    assert not await admitted(store, want("4", budget(1)))
    assert await admitted(store, want("5", budget(0)))
    assert await look(store) == (0, 10)


async def test_a_refusal_takes_nothing(store: Store, clock: FakeClock) -> None:
    rate, bucket = RateHit("rate", 5, SECOND), RateHit("bucket", 5, SECOND, SECOND)
    full = Charge("full", 1, 0)
    outcome = await store.reserve(want("1", rate, bucket, budget(3), full))

    assert not outcome.admitted
    again = await store.peek(want("", rate, bucket, budget(3)))
    assert again == ReservationOutcome(True, [0, 0], [5, 5], [(0, 0, 3)])
    assert not await store.settle("1", [1, 1])


async def test_a_peek_takes_nothing(store: Store) -> None:
    for _ in range(3):
        assert (
            await store.peek(want("1", RateHit("rate", 1, SECOND), budget(6)))
        ).admitted
    assert await look(store) == (0, 0)


async def test_settling_charges_once(store: Store) -> None:
    await store.reserve(want("1", budget(5)))
    await store.reserve(want("2", budget(5)))

    assert await store.settle("1", [3])
    assert not await store.settle("1", [3])
    assert not await store.settle("1", None)
    assert not await store.settle("unknown", [3])
    assert await look(store) == (3, 5)
    # More than was held is the truth, and then nothing more is admitted.
    assert await store.settle("2", [9])
    assert await look(store) == (12, 0)
    assert not await admitted(store, want("3", budget(1)))


async def test_unsettled_holds_cost_what_their_rule_says(store: Store) -> None:
    other = Charge("other", 2, 10, refund=True)
    await store.reserve(want("1", budget(5), other))

    assert await store.settle("1", None)
    outcome = await store.peek(want("", budget(0), other))
    assert outcome.levels == [(5, 0, 0), (0, 0, 2)]


async def test_an_unknown_amount_holds_all_that_is_left(store: Store) -> None:
    await store.reserve(want("1", budget(4)))
    outcome = await store.reserve(want("2", budget(None)))

    assert outcome.levels == [(0, 4, 6)]
    assert not await admitted(store, want("3", budget(None)))
    assert await store.settle("2", [1])
    assert await look(store) == (1, 4)


async def test_holds_end_and_can_be_corrected_for_a_day(
    store: Store, clock: FakeClock
) -> None:
    await store.reserve(want("1", budget(4), hold=SECOND))
    await store.reserve(want("2", budget(4), hold=SECOND))
    clock.now += 0.999
    assert await look(store) == (0, 8)
    clock.now += 0.001
    assert await look(store) == (8, 0)

    assert not await store.settle("1", None)
    assert await store.settle("1", [1])
    assert not await store.settle("1", [1])
    assert await look(store) == (5, 0)
    clock.now += CORRECTION_MICROSECONDS / SECOND
    assert not await store.settle("2", [1])
    assert await look(store) == (5, 0)


async def test_a_hold_ends_though_nobody_looks(store: Store, clock: FakeClock) -> None:
    await store.reserve(want("1", budget(4), hold=SECOND))
    clock.now += 1

    assert not await store.settle("1", None)
    assert await store.settle("1", [1])
    assert await look(store) == (1, 0)


async def test_any_number_of_holds_ends_at_once(store: Store, clock: FakeClock) -> None:
    for number in range(2001):
        line = budget(1, 2001, refund=True)
        assert await admitted(store, want(f"{number}", line, hold=SECOND))
    clock.now += 1
    assert await admitted(store, want("next", budget(2001, 2001)))


@pytest.mark.promise("RG-26")
async def test_a_window_slides(store: Store, clock: FakeClock) -> None:
    rate = RateHit("rate", 2, 60 * SECOND)
    for number, seconds in enumerate((0, 45)):
        clock.now += seconds
        assert await admitted(store, want(f"{number}", rate))

    outcome = await store.reserve(want("2", rate))
    assert (outcome.admitted, outcome.waits, outcome.room) == (False, [15_000_000], [0])
    clock.now += 14.999_999
    assert not await admitted(store, want("3", rate))
    clock.now += 0.000_001
    assert await admitted(store, want("4", rate))
    assert not await admitted(store, want("5", rate))
    # A limit that was lowered waits for as many as are now too many.
    [wait] = (await store.peek(want("", RateHit("rate", 1, 60 * SECOND)))).waits
    assert wait == 60_000_000


async def test_a_bucket_keeps_its_pace(store: Store, clock: FakeClock) -> None:
    bucket = RateHit("bucket", 2, 60 * SECOND, 30 * SECOND)
    assert await admitted(store, want("1", bucket))
    assert await admitted(store, want("2", bucket))

    outcome = await store.reserve(want("3", bucket))
    assert (outcome.waits, outcome.room) == ([30_000_000], [0])
    clock.now += 29.999_999
    assert not await admitted(store, want("4", bucket))
    clock.now += 0.000_001
    assert await admitted(store, want("5", bucket))
    clock.now += 3600
    assert (await store.peek(want("", bucket))).room == [2]


async def test_lines_on_trial_count_and_refuse_nothing(store: Store) -> None:
    trial = Charge("trial", 7, 10, enforced=False)
    rate = RateHit("rate", 1, SECOND, enforced=False)
    for number in range(2):
        assert await admitted(store, want(f"{number}", rate, trial))

    outcome = await store.peek(want("", rate, trial))
    assert outcome.levels == [(0, 14, 7)]
    assert outcome.waits[0] > 0


async def test_a_reset_forgets_what_begins_with_its_prefix(store: Store) -> None:
    lines: list[RateHit | Charge] = [
        *(RateHit("a|rate", 1, HOUR), RateHit("a|bucket", 1, HOUR, HOUR)),
        *(Charge("a|budget", 5, 10), Charge("ab", 5, 10), Charge("%_*|x", 5, 10)),
    ]
    await store.reserve(want("1", *lines))
    await store.settle("1", [5, 5, 5])
    await store.reserve(want("2", Charge("a|budget", 2, 10)))

    assert await store.reset("a|") == 3
    outcome = await store.peek(want("", *lines))
    assert outcome.waits == [0, 0]
    assert outcome.levels == [(0, 2, 5), (5, 0, 5), (5, 0, 5)]
    assert await store.reset("%_*") == 1
    assert await store.reset("nobody") == 0


@pytest.mark.promise("E-117")
async def test_a_clock_that_runs_back_or_leaps_forgives_nothing(
    store: Store, clock: FakeClock
) -> None:
    rate, bucket = (
        RateHit("rate", 2, 60 * SECOND),
        RateHit("bucket", 2, SECOND, 30 * SECOND),
    )
    start = clock.now
    assert await admitted(store, want("1", rate, bucket))
    clock.now = start - 3600
    assert await admitted(store, want("2", rate, bucket))
    for back in (0, -1, -3600, -86_400 * 400):
        clock.now = start + back
        outcome = await store.reserve(want(f"{back}", rate, bucket))
        assert not outcome.admitted
        assert min(outcome.waits) > 0
    clock.now = start + 60
    assert await admitted(store, want("3", rate, bucket))


@pytest.mark.promise("T12")
@pytest.mark.parametrize("interval", [0, 30 * SECOND])
async def test_a_clock_that_was_ahead_costs_one_window(
    tmp_path: Path, clock: FakeClock, interval: int
) -> None:
    rate, path = RateHit("rate", 2, 60 * SECOND, interval), tmp_path / "state.db"
    year = 365 * 86_400
    async with aclosing(SQLiteStore(path, clock=lambda: clock.now + year)) as ahead:
        assert await admitted(ahead, want("1", rate))
        assert await admitted(ahead, want("2", rate))
    async with aclosing(SQLiteStore(path, clock=lambda: clock.now)) as right:
        outcome = await right.reserve(want("3", rate))
        assert not outcome.admitted
        assert outcome.waits[0] <= 60 * SECOND
        clock.now += 61
        assert await admitted(right, want("4", rate))


async def test_large_amounts_are_exact(store: Store) -> None:
    most = 10**15
    big = Charge("big", most - 1, most)
    assert await admitted(store, want("1", big))
    assert not await admitted(store, want("2", big._replace(amount=2)))
    assert await admitted(store, want("3", big._replace(amount=1)))
    assert await store.settle("1", [most - 2])

    [level] = (await store.peek(want("", big))).levels
    assert level == (most - 2, 1, most - 1)


async def test_a_store_may_be_closed_twice(
    make_store: StoreMaker, clock: FakeClock
) -> None:
    made = make_store(clock)
    await made.aclose()
    with open(os.devnull) as file:
        # A number that was closed is another file's now.
        await made.aclose()
        assert file.read() == ""
