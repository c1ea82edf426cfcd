"""Opens clients of a Redis server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .errors import ConfigError
from .text.install_hint import install_hint


def open_redis(
    url: str,
    seconds: float,
    *,
    extra: str = "redis",
    retries: bool = False,
    texts: bool = False,
) -> tuple[Any, type[Exception]]:
    """Return a client, and the base of its errors. Nothing is sent yet.

    Args:
        url: The server, such as `redis://host:6379/0`.
        seconds: Seconds to wait for the server. When it is reached the client raises.
        extra: The extra of toolcell that brings the package.
        retries: False, the default, sends each command once: a script that was sent
            twice could write twice. True: the client tries again as it does by itself.
        texts: True: answers are text instead of bytes.

    Raises:
        ConfigError: The redis package is missing, or the URL is not valid.
    """
    try:
        import redis
    except ImportError as error:
        raise ConfigError(
            "the redis package is missing", hint=install_hint(extra)
        ) from error
    options = {} if retries else _once()
    client = _opened(url, redis.Redis.from_url, options | _patience(seconds), texts)
    return client, redis.RedisError


def open_redis_cluster(url: str, seconds: float) -> Any:
    """Return a client of a cluster that sends commands once and answers in text.

    It asks the server for the nodes, with errors of `redis.RedisError`.

    Args:
        url: A node of the cluster.
        seconds: Seconds to wait for each node. When it is reached the client raises.
    """
    import redis

    options = _once() | _patience(seconds)
    return _opened(url, redis.RedisCluster.from_url, options, texts=True)


def open_async_redis(url: str, at: tuple[str, int] | None = None) -> Any:
    """Return a client of one asyncio loop that sends commands once, with text answers.

    It waits for as long as the server takes. Nothing is sent yet.

    Args:
        url: The server, or a node of a cluster.
        at: The host and port of another node of the cluster; None: that of the URL.
    """
    from redis import asyncio as redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    options = {"retry": Retry(NoBackoff(), 0)} | _patience(None)
    client = _opened(url, redis.Redis.from_url, options, texts=True)
    if at is not None:
        # By name and password, and with the encryption, of the URL.
        client.connection_pool.connection_kwargs.update(host=at[0], port=at[1])
    return client


def _once() -> dict[str, Any]:
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return {"retry": Retry(NoBackoff(), 0)}


def _patience(seconds: float | None) -> dict[str, Any]:
    return {"socket_timeout": seconds, "socket_connect_timeout": seconds}


def _opened(
    url: str, make: Callable[..., Any], options: Mapping[str, Any], texts: bool
) -> Any:
    try:
        return make(url, decode_responses=texts, **options)
    except ValueError as error:
        raise ConfigError(
            f"{url!r} is not the URL of a server: {error}",
            hint='write it like "redis://localhost:6379/0"',
        ) from error
