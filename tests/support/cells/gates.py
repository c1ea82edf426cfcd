"""A gate of a guarded network that remembers what it was asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from toolcell.core import GuardDeniedError
from toolcell.sandbox.spi import NetworkAct


class Gate:
    """Admits the acts that `allow` is true for, and remembers all."""

    max_pause_seconds = 60.0
    holds = False
    """True if it reads bodies before it answers."""

    def __init__(self, allow: Callable[[NetworkAct], bool] = lambda act: True) -> None:
        self.allow = allow
        self.asked: list[tuple[str, Any]] = []
        self.outcomes: list[dict[str, Any]] = []
        self.cancelled = 0
        self.unplaced_reasons: list[str] = []
        self.bodies: list[dict[str, Any]] = []

    async def look(self) -> None:
        """Take the time that a person takes."""

    @asynccontextmanager
    async def admit(self, act: NetworkAct) -> AsyncIterator[None]:
        facts = act.arguments
        self.asked.append((act.name, facts.get("path", facts["port"])))
        if self.holds and act.hold_body is not None:
            body = await act.hold_body()
            self.bodies.append({**body.facts, "shown": body.shown})
        try:
            await self.look()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        if not self.allow(act):
            details = {"reason": "not_allowed", "rule": "a.deny[0]", "retry_after": 7}
            raise GuardDeniedError("no rule allows it", details=details)
        yield
        self.outcomes.append({**act.outcome()})

    async def unplaced(self, act: NetworkAct, reason: str, message: str) -> None:
        self.unplaced_reasons.append(reason)
