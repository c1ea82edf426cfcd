"""Sends scripts to Redis on threads: on trio, and for all that is rare."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import anyio.lowlevel
import anyio.to_thread

from toolcell.core import StoreUnavailableError
from toolcell.core.redis_client import open_redis, open_redis_cluster

Address = tuple[str, int]
"""Host and port of a node."""

_T = TypeVar("_T")
_THREADS = 8


class Script(NamedTuple):
    """A script of the server, and the name by which it knows it."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> Script:
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class ThreadedRedis:
    """A client for all threads and event loops of a process.

    Args:
        url: The server, or a node of a cluster.
        deadline: Seconds to wait for the server. When it is reached the operation
            fails as `store_unavailable`.

    Raises:
        ConfigError: The redis package is missing, or the URL is not valid.
    """

    def __init__(self, url: str, deadline: float) -> None:
        self._url = url
        self._deadline = deadline
        self._client, error = open_redis(url, deadline, texts=True)
        self._errors = (error, *cluster_errors())
        self._follows_cluster = False
        self._failed_at = 0.0
        self._turn = anyio.lowlevel.RunVar[anyio.CapacityLimiter](f"turn-{id(self)}")

    async def run(self, work: Callable[[Any], _T]) -> _T:
        """Let a thread work with the client.

        Raises:
            StoreUnavailableError: The server does not answer.
        """
        try:
            turn = self._turn.get()
        except LookupError:
            turn = anyio.CapacityLimiter(_THREADS)
            self._turn.set(turn)
        asked_at = time.monotonic()
        return await anyio.to_thread.run_sync(self._try, work, asked_at, limiter=turn)

    async def evaluate(self, script: Script, key: str, values: Sequence[Any]) -> Any:
        """Run a script, as `Link.evaluate` does."""
        return await self.run(lambda client: evaluate(client, script, key, values))

    def follow_cluster(self) -> Any:
        """Return a client of the whole cluster, which is used from now on."""
        if not self._follows_cluster:
            single = self._client
            self._client = open_redis_cluster(self._url, self._deadline)
            self._follows_cluster = True
            single.close()
        return self._client

    def node_of(self, key: str) -> Address:
        """Return the node of a cluster that has a key, as far as is known.

        Raises:
            StoreUnavailableError: No server has it.
        """
        try:
            node = self._client.get_node_from_key(key)
        except self._errors as error:
            raise unavailable(error) from error
        return node.host, node.port

    async def aclose(self) -> None:
        await anyio.to_thread.run_sync(self._client.close)

    def _try(self, work: Callable[[Any], _T], asked_at: float) -> _T:
        # A caller that waited through another one's deadline does not wait again.
        if self._failed_at > asked_at:
            raise StoreUnavailableError("Redis does not answer")
        try:
            return work(self._client)
        except self._errors as error:
            self._failed_at = time.monotonic()
            raise unavailable(error) from error


def unavailable(error: Exception) -> StoreUnavailableError:
    """Return the error of a store whose server did not do what it was asked."""
    return StoreUnavailableError(f"Redis: {error}")


def cluster_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a cluster's client that are none of a server's."""
    from redis.exceptions import RedisClusterException

    return (RedisClusterException,)


def evaluate(client: Any, script: Script, key: str, values: Sequence[Any]) -> Any:
    """Run a script by a client that waits."""
    from redis.exceptions import NoScriptError

    try:
        return client.evalsha(script.sha, 1, key, *values)
    except NoScriptError:
        return client.eval(script.text, 1, key, *values)


def literal(text: str) -> str:
    """Return the pattern of keys that is met by this text alone."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)
