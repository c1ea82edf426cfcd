"""Whether a host would take a call now."""

from __future__ import annotations

import math

import anyio

from toolcell.core import ToolcellError

from .host import Host

FRESH_SECONDS = 1.0
"""How long an answer holds: a client that asks without end costs no more than this."""


class Readiness:
    """Looks at what calls need: counters, approvals, and what makes cells.

    Args:
        host: The host; open.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._looking = anyio.Lock()
        self._looked_at = -math.inf
        self._missing: tuple[str, ...] = ()

    async def missing(self) -> tuple[str, ...]:
        """Return the parts that do not answer: `store`, `approvals`, `sandbox`."""
        async with self._looking:
            if anyio.current_time() - self._looked_at >= FRESH_SECONDS:
                self._missing = await self._look()
                self._looked_at = anyio.current_time()
            return self._missing

    async def _look(self) -> tuple[str, ...]:
        host = self._host
        parts = {"store": host.guard.check, "approvals": host.approvals.check}
        if host.sandbox is not None:
            parts["sandbox"] = host.sandbox.check
        missing = []
        for name, check in parts.items():
            try:
                await check()
            except ToolcellError:
                missing.append(name)
        return tuple(missing)
