"""One table of stores of threads; the contract is tested on each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import (
    ExitStack,
    contextmanager,
)
from pathlib import Path
from tempfile import TemporaryDirectory

from toolcell.flow import (
    Checkpointer,
    MemoryCheckpointer,
    RedisCheckpointer,
    SQLiteCheckpointer,
    adapt,
)

from ..guard.redis_server import RedisServer

STORES = ["memory", "sqlite", "quick", "redis", "adapted"]
"""The table of stores; `quick` is SQLite that is not safe from a loss of power."""

OpenOne = Callable[[], Checkpointer]


@contextmanager
def stores(name: str) -> Iterator[OpenOne]:
    """Yield a function that opens instances on one new storage."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder)
        if name == "redis":
            server = RedisServer(path, keeps=False)
            stack.callback(server.kill)
            server.start()
            yield lambda: RedisCheckpointer(server.url, lease_seconds=1, deadline=10)
        elif name == "memory":
            reopened = _Reopened()
            yield lambda: reopened
        elif name == "adapted":
            plain = MemoryCheckpointer()
            yield lambda: adapt(plain, lease_seconds=1)
        else:
            safe = name == "sqlite"
            yield lambda: SQLiteCheckpointer(
                path / "t.db", power_safe=safe, busy_seconds=30
            )


class _Reopened(MemoryCheckpointer):
    """A store that dies with its instance, and so is opened again."""

    async def aclose(self) -> None:
        """Stay open."""
