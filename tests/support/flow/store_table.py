"""One table of stores of threads; the contract is tested on each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import (
    ExitStack,
    contextmanager,
)
from pathlib import Path
from tempfile import TemporaryDirectory

from toolcell.flow import MemoryCheckpointer, RedisCheckpointer, SQLiteCheckpointer
from toolcell.flow.spi import Checkpointer, adapt

from ..guard.redis_server import RedisServer
from ..guard.worker import PATIENCE

STORES = ["memory", "sqlite", "quick", "redis", "adapted"]
"""The table of stores; `quick` is SQLite that is not safe from a loss of power."""

OpenOne = Callable[[], Checkpointer]


@contextmanager
def stores(name: str, lease_seconds: float = 60) -> Iterator[OpenOne]:
    """Yield a function that opens instances on one new storage.

    Args:
        name: One of the table.
        lease_seconds: Seconds for which an instance that was closed keeps a thread, in
            stores that cannot see that it is gone.
    """
    with TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder)
        if name == "redis":
            server = RedisServer(path, keeps=False)
            stack.callback(server.kill)
            server.start()
            yield lambda: RedisCheckpointer(
                server.url, lease_seconds=lease_seconds, deadline=PATIENCE
            )
        elif name == "memory":
            reopened = _Reopened()
            yield lambda: reopened
        elif name == "adapted":
            plain = MemoryCheckpointer()
            yield lambda: adapt(plain, lease_seconds=lease_seconds)
        else:
            safe = name == "sqlite"
            yield lambda: SQLiteCheckpointer(
                path / "t.db", power_safe=safe, busy_seconds=PATIENCE
            )


class _Reopened(MemoryCheckpointer):
    """A store that dies with its instance, and so is opened again."""

    async def aclose(self) -> None:
        """Stay open."""
