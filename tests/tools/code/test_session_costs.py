"""What sessions use beside calls is charged, once the store takes it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from toolcell.core import StoreUnavailableError
from toolcell.guard import ActionGuard, AgentPolicy, Budget
from toolcell.sandbox import Usage
from toolcell.tools.code.session_costs import SessionCosts


class Idle:
    """A session without a program, whose processes go on."""

    agent_id = "a"
    users = 0
    used_ms = 0

    @property
    def session(self) -> Any:
        return self

    async def usage(self) -> Usage:
        return Usage(cpu_ms=self.used_ms)


@pytest.mark.promise("R26")
def test_what_a_store_did_not_take_is_charged_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = Budget(unit="cpu_ms", limit=10**6, window="day")
    policy = AgentPolicy(agent_id="a", allow=["run_python"], budgets=[budget])
    guard = ActionGuard([policy])
    held: Any = Idle()
    costs = SessionCosts(guard)

    async def unavailable(*_: object) -> bool:
        raise StoreUnavailableError("the store does not answer")

    async def used() -> int:
        await costs.begin(held)
        held.used_ms = 700
        with monkeypatch.context() as patch:
            patch.setattr(guard, "charge", unavailable)
            assert await costs.charge(held)
        assert await costs.charge(held)
        [state] = await guard.limits("a", "run_python")
        return int(state.used)

    assert anyio.run(used) == 700
