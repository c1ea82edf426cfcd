"""One table of stores; the contract is tested on each row."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest

from toolcell.guard import SQLiteStore, Store
from toolcell.guard.stores.base import Reservation, ReservationOutcome

from .builders import FakeClock
from .redis_cluster import redis_cluster
from .redis_server import RedisServer
from .worker import Place

STORES = ["memory", "sqlite", "redis", "cluster"]
"""The table of stores; `cluster` is a Redis Cluster."""

SHARED = ["sqlite", "redis", "cluster"]
"""Those that processes share."""

StoreMaker = Callable[[FakeClock], Store]


def sizes(small: int, whole: int, seconds: float) -> list[Any]:
    """Return the rounds of a proof: few in each run of the tests, all for `full`.

    Args:
        small: Few.
        whole: All.
        seconds: When all of them are too slow.
    """
    marks = [pytest.mark.full, pytest.mark.timeout(seconds)]
    return [small, pytest.param(whole, marks=marks)]


@contextmanager
def store_places(name: str) -> Iterator[Callable[[], Place]]:
    """Yield a function that finds places for new, empty stores of one kind."""
    numbers = itertools.count()
    with TemporaryDirectory() as folder, ExitStack() as stack:
        url = ""
        if name == "redis":
            server = RedisServer(Path(folder))
            stack.callback(server.kill)
            server.start()
            url = server.url
        elif name == "cluster":
            url = stack.enter_context(redis_cluster(Path(folder))).url

        def place() -> Place:
            number = next(numbers)
            return Place(name, url or f"{folder}/{number}.db", f"t{number}")

        yield place


@contextmanager
def store_makers(name: str) -> Iterator[StoreMaker]:
    """Yield a function that makes new, empty stores of one kind."""
    with store_places(name) as place:
        yield lambda clock: place().open(clock)


@pytest.fixture(scope="module", params=STORES)
def make_store(request: pytest.FixtureRequest) -> Iterator[StoreMaker]:
    with store_makers(request.param) as make:
        yield make


class Gated(SQLiteStore):
    """Lets what it is asked wait while the gate of that is shut."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.shut: set[str] = set()
        self.asked = 0

    async def reserve(self, request: Reservation) -> ReservationOutcome:
        await self._pass("reserve")
        return await super().reserve(request)

    async def settle(self, hold_id: str, actual: Sequence[int] | None) -> bool:
        await self._pass("settle")
        return await super().settle(hold_id, actual)

    async def _pass(self, gate: str) -> None:
        self.asked += gate in self.shut
        while gate in self.shut:
            await anyio.lowlevel.checkpoint()
