"""Opens clients of a Redis server."""

from __future__ import annotations

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
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise ConfigError(
            "the redis package is missing", hint=install_hint(extra)
        ) from error
    options = {} if retries else {"retry": Retry(NoBackoff(), 0)}
    try:
        client = redis.Redis.from_url(
            url,
            socket_timeout=seconds,
            socket_connect_timeout=seconds,
            decode_responses=texts,
            **options,
        )
    except ValueError as error:
        raise ConfigError(
            f"{url!r} is not the URL of a server: {error}",
            hint='write it like "redis://localhost:6379/0"',
        ) from error
    return client, redis.RedisError
