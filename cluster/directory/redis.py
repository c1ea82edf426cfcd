"""A directory in Redis: one key for each node, which a living node renews.

Neither the token nor anything of a program is ever written there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

import anyio.to_thread

from toolcell.core import ConfigError, SandboxUnavailableError
from toolcell.core.redis_client import open_redis

from ..wire.handshake import checked_token
from .records import TOLD_SECONDS, NodeRecord, read_signed, sign

_T = TypeVar("_T")
LIFE_SECONDS = 15.0
"""Seconds that a record stays. When they are over without a renewal, drivers that come
find the node no more; those that have a link to it keep it."""

RENEW_SECONDS = 4.0
"""Seconds between two renewals."""

_PAGE = 1_000
_MAX_NAMES = 100_000
_MAX_DIGITS = 9


class RedisDirectory:
    """The nodes of a cluster in Redis; needs the extra `cluster`.

    Args:
        url: The server, such as `redis://host:6379/0`.
        token: The cluster's token; records that it did not sign are left out.
        name: The cluster, so that several can share a server.
        seconds: Seconds to wait for the server; default 2. When it is reached the
            operation fails as `directory_unavailable`.

    Raises:
        ConfigError: The redis package is missing, or an argument is not valid.
    """

    def __init__(
        self, url: str, *, token: str, name: str = "toolcell", seconds: float = 2.0
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
            raise ConfigError(
                f"{name!r} cannot be the name of a cluster",
                hint="use 1 to 64 letters, digits and `_.-`",
            )
        self._key = checked_token(token)
        self._client, self._errors = open_redis(
            url, seconds, extra="cluster", retries=True
        )
        self._prefix = f"{{{name}}}:node:"
        self._index = f"{{{name}}}:nodes"
        self._queue = f"{{{name}}}:waiting:"
        self._drivers = f"{{{name}}}:drivers"

    async def nodes(self) -> Sequence[NodeRecord]:
        return await self._in_thread(self._nodes)

    async def tell(self, driver: str, waiting: int) -> None:
        await self._in_thread(lambda: self._tell(driver, waiting))

    async def waiting(self) -> int:
        return await self._in_thread(self._waiting)

    async def announce(self, record: NodeRecord) -> None:
        """Write a node, for `LIFE_SECONDS`. Raises SandboxUnavailableError."""
        await self._in_thread(lambda: self._announce(record))

    async def named(self, name: str) -> NodeRecord | None:
        """Return the node of a name. Raises SandboxUnavailableError."""
        text = await self._in_thread(lambda: self._client.get(self._prefix + name))
        return None if text is None else read_signed(text, self._key)

    async def withdraw(self, record: NodeRecord) -> None:
        """Remove a node. Raises SandboxUnavailableError."""
        await self._in_thread(lambda: self._withdraw(record))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _nodes(self) -> list[NodeRecord]:
        return self._living(
            self._index, self._prefix, lambda text: read_signed(text, self._key)
        )

    def _living(
        self, index: str, prefix: str, read: Callable[[bytes], _T | None]
    ) -> list[_T]:
        """Return the values of the names in an index; forget names without one.

        Whoever may write there without a token can add names of any bytes.
        """
        found: list[_T] = []
        names = islice(self._client.sscan_iter(index, count=_PAGE), _MAX_NAMES)
        while page := list(islice(names, _PAGE)):
            texts = self._client.mget([prefix.encode() + name for name in page])
            values = [read(text) for text in texts if text is not None]
            found += [value for value in values if value is not None]
            gone = [
                name for name, text in zip(page, texts, strict=True) if text is None
            ]
            if gone:
                self._client.srem(index, *gone)
        return found

    def _tell(self, driver: str, waiting: int) -> None:
        with self._client.pipeline() as pipe:
            pipe.set(self._queue + driver, waiting, px=round(TOLD_SECONDS * 1000))
            pipe.sadd(self._drivers, driver)
            pipe.execute()

    def _waiting(self) -> int:
        return sum(self._living(self._drivers, self._queue, _waiting_runs))

    def _announce(self, record: NodeRecord) -> None:
        with self._client.pipeline() as pipe:
            pipe.set(
                self._prefix + record.name,
                sign(record, self._key),
                px=round(LIFE_SECONDS * 1000),
            )
            pipe.sadd(self._index, record.name)
            pipe.execute()

    def _withdraw(self, record: NodeRecord) -> None:
        with self._client.pipeline() as pipe:
            pipe.delete(self._prefix + record.name)
            pipe.srem(self._index, record.name)
            pipe.execute()

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        try:
            return await anyio.to_thread.run_sync(work)
        except self._errors as error:
            raise SandboxUnavailableError(
                f"the directory of the cluster does not answer: {error}",
                hint="look after its Redis server; open links go on",
                details={"reason": "directory_unavailable"},
            ) from None


def _waiting_runs(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) <= _MAX_DIGITS else None
