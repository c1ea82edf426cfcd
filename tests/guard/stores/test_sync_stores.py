"""The contract of stores that never wait: no store is asked by its class."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from toolcell.core import GuardDeniedError
from toolcell.guard import ActionGuard, AgentPolicy, MemoryStore
from toolcell.guard.stores.base import Demand, OutcomeTuple

from ...support.guard.builders import call

pytestmark = pytest.mark.anyio


class Delegating:
    """A store of another kind that never waits."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.clock = self.inner.clock
        self.reserve, self.peek = self.inner.reserve, self.inner.peek
        self.settle, self.reset = self.inner.settle, self.inner.reset
        self.aclose = self.inner.aclose
        self.reserved, self.settled = 0, 0

    def reserve_sync(
        self, hold_id: str | int, demand: Demand, now: int | None = None
    ) -> OutcomeTuple:
        self.reserved += 1
        return self.inner.reserve_sync(hold_id, demand, now)

    def settle_deferred(self, hold_id: str | int, actual: Sequence[int] | None) -> None:
        self.settled += 1
        self.inner.settle_deferred(hold_id, actual)


async def test_any_store_that_never_waits_is_asked_at_once() -> None:
    store = Delegating()
    policy = AgentPolicy(agent_id="a", allow=["*"], rate_limits=["1/minute"])
    guard = ActionGuard([policy], store=store)

    async with guard.admit(call()) as permit:
        await permit.settle()
    with pytest.raises(GuardDeniedError):
        async with guard.admit(call()):
            pass
    assert (store.reserved, store.settled) == (2, 1)
