"""One table of stores; the contract is tested on each row."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from toolcell.guard import MemoryStore, RedisStore, SQLiteStore, Store

from .guards import FakeClock
from .redis_server import RedisServer

PATIENCE = 30.0
"""Seconds that stores wait in tests, where a slow machine is no failure."""

StoreMaker = Callable[[FakeClock], Store]
STORES = ["memory", "sqlite", "redis"]


@contextmanager
def store_makers(name: str) -> Iterator[StoreMaker]:
    """Yield a function that makes new, empty stores of one kind."""
    numbers = itertools.count()
    with TemporaryDirectory() as folder, ExitStack() as stack:
        url = ""
        if name == "redis":
            server = RedisServer(Path(folder))
            stack.callback(server.kill)
            server.start()
            url = server.url

        def make(clock: FakeClock) -> Store:
            number = next(numbers)
            if name == "memory":
                return MemoryStore(clock=clock)
            if name == "sqlite":
                path = Path(folder, f"{number}.db")
                return SQLiteStore(path, clock=clock, deadline=PATIENCE)
            prefix = f"t{number}"
            return RedisStore(url, prefix=prefix, clock=clock, deadline=PATIENCE)

        yield make


@pytest.fixture(scope="module", params=STORES)
def make_store(request: pytest.FixtureRequest) -> Iterator[StoreMaker]:
    with store_makers(request.param) as make:
        yield make
