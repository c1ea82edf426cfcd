"""Decisions as they would be now, and what limits leave; nothing is reserved."""

from __future__ import annotations

from toolcell.core import ToolCall

from ..approvals.approvals import Approvals
from ..stores.base import NO_LIMITS
from ..values.amounts import Clock, microseconds
from ..values.calls import CallFacts, Decision, Ruling
from ..values.limit_state import LimitState
from .compiled_policy import PolicySet
from .decisions import deny, from_limits, from_rules, limit_states, loop_detected
from .ledger import Ledger
from .loop_detector import LoopDetector
from .quotas import MissingFacts


class Forecasts:
    """Says what would be decided about a call now, and reserves nothing.

    Args:
        ledger: Knows the counters.
        loops: Knows the last calls of each run.
        clock: Returns seconds since 1970 (UTC), as for the calls themselves.
    """

    def __init__(self, ledger: Ledger, loops: LoopDetector, clock: Clock) -> None:
        self._ledger = ledger
        self._loops = loops
        self._clock = clock

    async def decision(
        self,
        policies: PolicySet,
        approvals: Approvals | None,
        call: ToolCall,
        facts: CallFacts,
    ) -> Decision:
        """Return the decision of rules, people and limits, with each rule tried."""
        tool_policy = policies.tool_policy(call)
        ruling = await tool_policy.ruling_on(call, facts, explain=True)
        if ruling.verdict == "deny":
            return from_rules(ruling, policies.version)
        if ruling.verdict == "ask" and approvals is not None:
            answer = await approvals.peek(call, facts, approvers=ruling.approvers)
            if answer.status == "rejected":
                return deny("approval_denied", answer.reason, policies.version)
            if answer.approved:
                ruling = ruling.approved()
        return await self.by_limits(policies, ruling, call, facts)

    async def by_limits(
        self, policies: PolicySet, ruling: Ruling, call: ToolCall, facts: CallFacts
    ) -> Decision:
        """Return the decision of the limits on a call that rules let pass."""
        tool_policy = policies.tool_policy(call)
        circle = self._loops.peek(tool_policy.caps, call, facts)
        if circle is not None:
            return loop_detected(ruling, circle, policies.version)
        now = microseconds(self._clock())
        lines = tool_policy.plan.lines(facts, now)
        outcome = NO_LIMITS
        if lines.limits:
            outcome = await self._ledger.peek(lines.request(""))
        return from_limits(ruling, lines, outcome, now, policies.version, took=False)

    async def limits(
        self, policies: PolicySet, call: ToolCall, facts: CallFacts
    ) -> list[LimitState]:
        """Return the state of each limit; none if a limit lacks the run or the turn.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        now = microseconds(self._clock())
        try:
            lines = policies.tool_policy(call).plan.lines(facts, now)
        except MissingFacts:
            return []
        if not lines.limits:
            return []
        outcome = await self._ledger.peek(lines.request(""))
        return limit_states(lines, outcome, now)
