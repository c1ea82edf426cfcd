"""Checks that a host could make a call now."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
from anyio.to_thread import run_sync

from toolcell.core import ToolcellError

from .host import Host

FRESH_SECONDS = 1.0
"""Seconds that an answer is valid, so that endless polling costs little."""


class Readiness:
    """Checks the parts that calls need: the stores, and the sandbox.

    Args:
        host: The host; open.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._checking = anyio.Lock()
        self._checked_at = -math.inf
        self._missing: tuple[str, ...] = ()

    async def missing(self) -> tuple[str, ...]:
        """Return the parts that do not respond: `store`, `approvals`, `records`,
        `sandbox`."""
        async with self._checking:
            if anyio.current_time() - self._checked_at >= FRESH_SECONDS:
                self._missing = await self._check()
                self._checked_at = anyio.current_time()
            return self._missing

    async def _check(self) -> tuple[str, ...]:
        host = self._host
        parts: dict[str, Callable[[], Awaitable[object]]] = {
            "store": host.guard.check,
            "approvals": host.approvals.check,
            "records": partial(run_sync, host.executor.check_records),
        }
        if host.sandbox is not None:
            parts["sandbox"] = host.sandbox.check
        missing = []
        for name, check in parts.items():
            try:
                await check()
            except ToolcellError:
                missing.append(name)
        return tuple(missing)
