"""A guard whose calls are parked, and the people who answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolcell.core import InvalidInputError
from toolcell.guard import ActionGuard, AgentPolicy, Approvals, ApprovalStore, CallFacts
from toolcell.guard.spi import ApprovalReply, Rule

from .builders import call, refusal

FACTS = CallFacts(cost={}, run_id="r", approval_seconds=0, park=True)
TWO = Rule(tools=["pay"], approvers=2)


class Desk:
    """A guard whose calls are parked, and the people who answer.

    Args:
        path: The file of the approvals. None: they are in memory.
        rules: The rules that ask, of each agent; default `TWO`.
        agents: The agents.
        options: Those of `Approvals`.
    """

    def __init__(
        self,
        path: Path | None,
        *rules: Rule,
        agents: tuple[str, ...] = ("a",),
        **options: Any,
    ) -> None:
        self.store = ApprovalStore(path)
        self.approvals = Approvals(self.store, answered_elsewhere=True, **options)
        rules = rules or (TWO,)
        self.guard = ActionGuard(
            [AgentPolicy(agent_id=agent, ask=rules) for agent in agents],
            approvals=self.approvals,
        )

    async def ask(self, agent: str = "a", **arguments: Any) -> str:
        """Make a call that is refused for now; return its request."""
        told = await refusal(self.guard, call("pay", agent, **arguments), FACTS)
        assert told["reason"] == "approval_required", told
        return str(told["approval_id"])

    async def ran(self, agent: str = "a", **arguments: Any) -> dict[str, Any]:
        """Make the call again; return the arguments with which it ran."""
        async with self.guard.admit(call("pay", agent, **arguments), FACTS) as permit:
            await permit.settle({})
            return permit.call.arguments

    async def told(self, request: str, reply: ApprovalReply) -> str:
        """Answer; return why that did not count."""
        with pytest.raises(InvalidInputError) as caught:
            await self.approvals.answer(request, reply)
        return str(caught.value)

    async def state(self, request: str) -> tuple[str, tuple[str, ...]]:
        """Return the status of a request, and who has approved it."""
        found = await self.approvals.find(request)
        assert found is not None
        return found.status, found.approved_by
