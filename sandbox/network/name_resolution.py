"""Looks names up in threads, which runs and agents share fairly."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import anyio

Find = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a name and port. May block; raises OSError."""

MAX_LOOKUPS = 64
"""Lookups at once. When it is reached further ones wait. So do those of an agent that
has half as many as the other agents leave free."""

_OF_A_RUN = 4


def _addresses(host: str, port: int) -> list[str]:
    """Return the addresses of a name, as this machine finds them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class NameResolver:
    """The lookups of one event loop.

    No run has more than four at once, and no agent more than half of what is free, so
    none can starve the others. An abandoned lookup counts until the name server has
    answered, as its thread cannot be stopped.

    Args:
        find: Looks one name up; it may block.
    """

    def __init__(self, find: Find = _addresses) -> None:
        self._find = find
        self._of_agents: Counter[str | None] = Counter()
        self._of_runs: Counter[object] = Counter()
        self._changed = anyio.Event()

    def of_run(
        self, agent_id: str | None
    ) -> Callable[[str, int], Coroutine[Any, Any, Sequence[str]]]:
        """Return a function that looks names up for one run of an agent."""
        run = object()

        async def look_up(host: str, port: int) -> Sequence[str]:
            while not self._has_room(agent_id, run):
                await self._changed.wait()
            return await self._look_up(agent_id, run, host, port)

        return look_up

    def _has_room(self, agent_id: str | None, run: object) -> bool:
        left = MAX_LOOKUPS - self._of_agents.total()
        share = max(left // 2, min(left, 1))
        return self._of_agents[agent_id] < share and self._of_runs[run] < _OF_A_RUN

    async def _look_up(
        self, agent_id: str | None, run: object, host: str, port: int
    ) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[str]] = loop.create_future()

        def end(found: Sequence[str] | Exception) -> None:
            self._of_agents -= Counter([agent_id])
            self._of_runs -= Counter([run])
            self._changed.set()
            self._changed = anyio.Event()
            if answer.done():
                return
            if isinstance(found, Exception):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        def work() -> None:
            found: Sequence[str] | Exception
            try:
                found = self._find(host, port)
            except Exception as error:  # noqa: BLE001 - raised to the caller
                found = error
            with contextlib.suppress(RuntimeError):
                # The loop may have ended meanwhile.
                loop.call_soon_threadsafe(end, found)

        # Not a pool's thread: the end of the process must not wait for a name server.
        thread = threading.Thread(target=work, name="toolcell lookup", daemon=True)
        thread.start()
        self._of_agents[agent_id] += 1
        self._of_runs[run] += 1
        return await answer
