"""Counters in Redis, shared by many machines, on the server's clock.

Reserving and settling are one script and one round trip each. The server's
`appendonly` setting decides how much survives its restart. All keys are in one slot of
a cluster.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import anyio.lowlevel
import anyio.to_thread

from toolcell.core import ConfigError, StoreUnavailableError
from toolcell.core.redis_client import open_redis

from ..values.clock import Clock, microseconds
from .base import Reservation, ReservationOutcome
from .redis_scripts import RESERVE, SETTLE

_T = TypeVar("_T")
_THREADS = 8


class RedisStore:
    """Counters that any number of machines share; needs the extra `redis`.

    Args:
        url: The server, such as `redis://host:6379/0`.
        prefix: Start of every key, so that several hosts can share a server.
        clock: The time in seconds. Default: the server's own.
        deadline: Seconds to wait for the server; default 0.05. When it is reached the
            operation fails as `store_unavailable`.

    Raises:
        ConfigError: The redis package is missing, or the URL or prefix is not valid.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "toolcell",
        clock: Clock | None = None,
        deadline: float = 0.05,
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,64}", prefix):
            raise ConfigError(
                f"{prefix!r} cannot be a prefix of keys",
                hint="use 1 to 64 letters, digits and `_.:-`",
            )
        self._client, self._error = open_redis(url, deadline, texts=True)
        self._prefix = f"{{{prefix}}}:"
        self._clock = clock
        self._deadline = deadline
        self._failed_at = 0.0
        self._now = 0
        self._reserve = self._client.register_script(RESERVE)
        self._settle = self._client.register_script(SETTLE)
        self._turn = anyio.lowlevel.RunVar[anyio.CapacityLimiter](f"turn-{id(self)}")

    async def reserve(self, request: Reservation) -> ReservationOutcome:
        return await self._evaluate(request, take=True)

    async def peek(self, request: Reservation) -> ReservationOutcome:
        return await self._evaluate(request, take=False)

    async def settle(self, hold_id: str, actual: Sequence[int] | None) -> bool:
        values = [self._time(), hold_id, *(actual or ())]
        return bool(await self._in_thread(lambda: self._run(self._settle, values)))

    async def reset(self, prefix: str) -> int:
        return await self._in_thread(lambda: self._reset(prefix))

    async def aclose(self) -> None:
        """Close the connections."""
        await anyio.to_thread.run_sync(self._client.close)

    async def _evaluate(
        self, request: Reservation, *, take: bool
    ) -> ReservationOutcome:
        values: list[object] = [
            self._time(),
            request.hold_id,
            request.hold_microseconds,
            int(take),
        ]
        values.append(len(request.hits))
        for hit in request.hits:
            values += [hit.key, hit.limit, hit.window, hit.interval, int(hit.enforced)]
        values.append(len(request.charges))
        for charge in request.charges:
            amount = "" if charge.amount is None else charge.amount
            values += [charge.key, amount, charge.limit, charge.keep]
            values += [int(charge.refund), int(charge.enforced)]
        admitted, numbers = await self._in_thread(
            lambda: self._run(self._reserve, values)
        )
        cut = 2 * len(request.hits)
        levels = [
            (numbers[i], numbers[i + 1], numbers[i + 2])
            for i in range(cut, len(numbers), 3)
        ]
        return ReservationOutcome(
            admitted == 1, numbers[:cut:2], numbers[1:cut:2], levels
        )

    def _time(self) -> int | str:
        if self._clock is None:
            return ""
        self._now = max(self._now, microseconds(self._clock()))
        return self._now

    def _run(self, script: Any, values: list[Any]) -> Any:
        return script(keys=[self._prefix], args=values)

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        try:
            turn = self._turn.get()
        except LookupError:
            turn = anyio.CapacityLimiter(_THREADS)
            self._turn.set(turn)
        asked_at = time.monotonic()
        return await anyio.to_thread.run_sync(self._tried, work, asked_at, limiter=turn)

    def _tried(self, work: Callable[[], _T], asked_at: float) -> _T:
        # A caller that waited through another one's deadline does not wait again.
        if self._failed_at > asked_at:
            raise StoreUnavailableError("Redis does not answer")
        try:
            return work()
        except self._error as error:
            self._failed_at = time.monotonic()
            raise StoreUnavailableError(f"Redis: {error}") from error

    def _reset(self, prefix: str) -> int:
        literal = re.sub(r"([*?\[\]\\])", r"\\\1", prefix)
        found = 0
        for kind in ("account", "window", "bucket"):
            for key in self._client.scan_iter(f"{self._prefix}{kind}:{literal}*"):
                found += 1
                if kind == "account":
                    self._client.hset(key, "used", 0)
                else:
                    self._client.delete(key)
        return found
