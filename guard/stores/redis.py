"""Counters in Redis, shared by many machines, on the server's clock.

Reserving and settling are one script and one round trip each; calls at once share the
trips. The server's `appendonly` setting decides how much survives its restart.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Sequence
from typing import Any

from toolcell.core import ConfigError, StoreUnavailableError
from toolcell.core.detached import in_asyncio

from ..values.amounts import Clock, microseconds
from .base import Reservation, ReservationOutcome
from .redis_link import RedisLink
from .redis_scripts import CLAIM, LAYOUT
from .redis_slots import AgentSlots, OneSlot, Way
from .redis_threads import ThreadedRedis, evaluate, literal

_RESET_AGENT = re.compile(r"agent\|([^|]+)\|")


class RedisStore:
    """Counters that any number of machines share; needs the extra `redis`.

    The server may be a node of a Redis Cluster, which is noticed at the first
    operation: the counters of an agent are then in the slot of its topmost parent, so
    that agents are spread over the nodes.

    Args:
        url: The server, such as `redis://host:6379/0`.
        prefix: Start of every key, so that several hosts can share a server.
        clock: The time in seconds. Default: the server's own.
        deadline: Seconds to wait for the server; default 0.05. When it is reached the
            operation fails as `store_unavailable`. To find the nodes of a cluster,
            once, may take longer.

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
        self._url = url
        self._prefix = prefix
        self._clock = clock
        self._deadline = deadline
        self._now = 0
        self._threads = ThreadedRedis(url, deadline)
        self._opening = threading.Lock()
        self._slots: OneSlot | AgentSlots | None = None
        """The places of the keys; None until the server has been looked at."""

        self._links: dict[asyncio.AbstractEventLoop, RedisLink] = {}
        """The connections of each asyncio loop."""

    async def reserve(self, request: Reservation) -> ReservationOutcome:
        slots, way = await self._open()
        return await slots.reserve(way, self._time(), request, take=True)

    async def peek(self, request: Reservation) -> ReservationOutcome:
        slots, way = await self._open()
        return await slots.reserve(way, self._time(), request, take=False)

    async def settle(self, hold_id: str, actual: Sequence[int] | None) -> bool:
        slots, way = await self._open()
        return await slots.settle(way, self._time(), hold_id, actual)

    async def reset(self, prefix: str) -> int:
        await self._open()
        return await self._threads.run(lambda client: self._reset(client, prefix))

    async def aclose(self) -> None:
        """Close the connections of this event loop; others close with their loops."""
        if in_asyncio():
            link = self._links.pop(asyncio.get_running_loop(), None)
            if link is not None:
                await link.aclose()
        await self._threads.aclose()

    def _time(self) -> int | str:
        if self._clock is None:
            return ""
        self._now = max(self._now, microseconds(self._clock()))
        return self._now

    async def _open(self) -> tuple[OneSlot | AgentSlots, Way]:
        """Return the places of the keys, and the way of this event loop to them.

        Raises:
            StoreUnavailableError: The server does not answer, or has counters of a
                toolcell that keeps them in other places.
        """
        slots = self._slots
        if slots is None:
            slots = await self._threads.run(self._look)
        if not in_asyncio():
            return slots, self._threads
        loop = asyncio.get_running_loop()
        link = self._links.get(loop)
        if link is None:
            # A copy: other threads open their own links meanwhile.
            for ended in [each for each in list(self._links) if each.is_closed()]:
                self._links.pop(ended, None)
            cluster = self._threads if isinstance(slots, AgentSlots) else None
            link = self._links[loop] = RedisLink(self._url, self._deadline, cluster)
        return slots, link

    def _look(self, client: Any) -> OneSlot | AgentSlots:
        """Look at the server, once, and claim the keys of a cluster."""
        with self._opening:
            if self._slots is None:
                if client.info("cluster").get("cluster_enabled"):
                    self._slots = self._claim_cluster()
                else:
                    self._slots = OneSlot(self._prefix)
            return self._slots

    def _claim_cluster(self) -> AgentSlots:
        slots = AgentSlots(self._prefix)
        client = self._threads.follow_cluster()
        if not evaluate(client, CLAIM, slots.common, [LAYOUT]):
            raise StoreUnavailableError(
                f"Redis has counters of {self._prefix!r} by another toolcell",
                hint="give another prefix, or delete its keys when no such host runs",
            )
        return slots

    def _reset(self, client: Any, prefix: str) -> int:
        assert self._slots is not None
        found = 0
        for kind in ("account", "window", "bucket"):
            pattern = self._slots.pattern(kind, f"{literal(prefix)}*")
            for key in client.scan_iter(pattern):
                found += 1
                if kind == "account":
                    client.hset(key, "used", 0)
                else:
                    client.delete(key)
        agent = _RESET_AGENT.fullmatch(prefix)
        if agent and isinstance(self._slots, AgentSlots):
            client.hdel(f"{self._slots.common}homes", agent[1])
            self._slots.forget_homes()
        return found
