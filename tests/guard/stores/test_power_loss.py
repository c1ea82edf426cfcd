"""Power loss: whatever of a store's log reached the disk, it opens as it once was."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from toolcell.guard import Store
from toolcell.guard.stores.base import Charge, RateHit, Reservation

from ...conftest import run_apart
from ...support.guard.builders import FakeClock
from ...support.guard.lost_power import copy_as_lost, cut
from ...support.guard.redis_server import RedisServer
from ...support.guard.store_table import sizes
from ...support.guard.worker import Place

HOUR = 3_600_000_000
OPERATIONS = 24

State = tuple[object, ...]


def request(number: int) -> Reservation:
    """Ask for lines of each kind, all of which must change together."""
    lines = [Charge("spent", 1 << number, 2**52), Charge("slots", 1, 99, refund=True)]
    # A server forgets what is full again by its own clock: no sooner than in an hour.
    bucket = RateHit("bucket", 99, 99 * HOUR, HOUR)
    rates = [RateHit("window", 99, HOUR), bucket]
    return Reservation(f"{number}", rates, lines, HOUR)


async def state_of(store: Store) -> State:
    outcome = await store.peek(request(0))
    levels = [(used, held) for used, held, _ in outcome.levels]
    return tuple(outcome.room), tuple(levels)


async def operate(store: Store, chance: random.Random) -> list[State]:
    """Reserve and settle at random; return each state on the way."""
    states, holds = [await state_of(store)], list[int]()
    for number in range(OPERATIONS):
        if holds and chance.random() < 0.5:
            hold = holds.pop(chance.randrange(len(holds)))
            assert await store.settle(f"{hold}", chance.choice([None, [1 << hold, 0]]))
        else:
            assert (await store.reserve(request(number))).admitted
            holds.append(number)
        states.append(await state_of(store))
    return states


async def state_at(place: Place) -> State:
    store = place.open(FakeClock())
    try:
        state = await state_of(store)
        # And it counts on from there.
        assert (await store.reserve(request(OPERATIONS + 1))).admitted
    finally:
        await store.aclose()
    return state


def lose(
    states: list[State], losses: int, open_again: Callable[[random.Random], State]
) -> None:
    seen = set()
    for number in range(losses):
        state = open_again(random.Random(number))
        assert state in states, f"loss {number}"
        seen.add(state)
    assert len(seen) > 2


@pytest.mark.parametrize("losses", sizes(8, 500, 1200))
def test_a_file_that_lost_power_is_as_it_once_was(tmp_path: Path, losses: int) -> None:
    place = Place("sqlite", str(tmp_path / "state.db"))
    store = place.open(FakeClock())
    states = run_apart(operate, store, random.Random(0))

    def open_again(chance: random.Random) -> State:
        left = tmp_path / "left.db"
        copy_as_lost(Path(place.address), left, chance)
        return run_apart(state_at, Place("sqlite", str(left)))

    try:
        lose(states, losses, open_again)
    finally:
        run_apart(store.aclose)


@pytest.mark.parametrize("losses", sizes(6, 200, 1200))
def test_a_server_that_lost_power_is_as_it_once_was(
    tmp_path: Path, losses: int
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with ExitStack() as stack:
        server = RedisServer(home)
        stack.callback(server.kill)
        server.start()
        store = Place("redis", server.url, "t").open(FakeClock())
        states = run_apart(operate, store, random.Random(0))
        run_apart(store.aclose)

    def open_again(chance: random.Random) -> State:
        left = tmp_path / "left"
        shutil.rmtree(left, ignore_errors=True)
        shutil.copytree(home, left, ignore=shutil.ignore_patterns("*.sock"))
        [log] = left.glob("appendonlydir/*.incr.aof")
        cut(log, chance)
        again = RedisServer(left)
        again.start()
        try:
            return run_apart(state_at, Place("redis", again.url, "t"))
        finally:
            again.kill()

    lose(states, losses, open_again)
