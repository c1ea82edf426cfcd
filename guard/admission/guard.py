"""The guard: one decision before a call, one settlement after it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import anyio
from pydantic import JsonValue

from toolcell.core import AuditError, StoreUnavailableError, ToolCall

from ..approvals.approvals import Approvals
from ..approvals.types import ApprovalOutcome, Preview
from ..audit.log import AuditLog
from ..policy.policy import AgentPolicy
from ..stores.base import Store
from ..stores.memory import MemoryStore
from ..values.amounts import Clock, microseconds, steady_time
from ..values.calls import NO_CAPS, NO_FACTS, CallFacts, Decision, Reason, Ruling
from ..values.limit_state import LimitState
from .compiled_policy import PolicySet, ToolPolicy
from .decisions import (
    ApprovalTaken,
    CallDenied,
    check_approvers,
    deny,
    from_rules,
    loop_detected,
    not_approved,
    refusal_for,
)
from .forecasts import Forecasts
from .hold import (
    CallRecords,
    Complete,
    GuardListener,
    Hold,
    LoopEntry,
    WhileWaiting,
)
from .ledger import FailureMode, Ledger
from .loop_detector import LoopDetector
from .permit import Permit
from .quotas import agent_prefix

_log = logging.getLogger("toolcell.guard")
_NOTHING: Mapping[str, JsonValue] = MappingProxyType({})


class ActionGuard:
    """The gate that every call passes: it decides before the call, and settles after.

    `admit` judges a call by its agent's policies, asks a person where a rule says so,
    and reserves the call's maximum cost in all limits at once or in none. `settle`
    replaces the reservation by the measured cost. So `used + held <= limit` holds for
    each account at all times, however many calls run at once.

    It is closed by default: a call without an agent, without a policy or without a
    rule that allows it is refused, and so is one that the guard fails to judge. If
    there is an audit log, a call runs only after its decision is recorded.

    One guard serves any number of threads and event loops.

    Args:
        policies: One policy for each agent. An agent without one may do nothing.
        store: The counters of limits. Default: in the memory of this process.
        audit: The log of decisions and outcomes. Default: none is written.
        approvals: Asks people. Default: no one is asked, and `ask` rules refuse.
        clock: Returns seconds since 1970 (UTC), for the windows of budgets and for
            durations. Default: a clock that never runs back.
        on_store_failure: The answer to calls while the store is unavailable. `closed`
            (default) refuses them with `store_unavailable`. `local(20)` admits 20
            calls of each agent in one outage, under its limits as this process alone
            counts them. `open` admits every call that a rule allows, uncounted.

    Raises:
        PolicyError: The policies contradict each other, or `on_store_failure` is not
            a failure mode.
    """

    def __init__(
        self,
        policies: Iterable[AgentPolicy] = (),
        *,
        store: Store | None = None,
        audit: AuditLog | None = None,
        approvals: Approvals | None = None,
        clock: Clock = steady_time,
        on_store_failure: str = "closed",
    ) -> None:
        self._policies = PolicySet(policies)
        self._records = CallRecords(audit, clock)
        self.approvals = approvals
        if approvals is not None and approvals.audit is None:
            approvals.audit = audit
        self._clock = clock
        mode = FailureMode.parse(on_store_failure)
        store = MemoryStore(clock=clock) if store is None else store
        self._ledger = Ledger(store, mode, clock, self._records.event)
        self._loops = LoopDetector()
        self._forecasts = Forecasts(self._ledger, self._loops, clock)

    @property
    def listeners(self) -> list[GuardListener]:
        """Called when `policies` were replaced, at a `reset`, and for the store:
        `store_unavailable` and `store_available`; in the thread where it happens."""
        return self._records.listeners

    @property
    def policy_version(self) -> str:
        """The version of the policies in force."""
        return self._policies.version

    @property
    def policies(self) -> list[AgentPolicy]:
        """The policies in force, in their order."""
        return self._policies.written

    @property
    def agents(self) -> list[str]:
        """The agents that have policies, in their order."""
        return [each.agent_id for each in self._policies.written]

    @property
    def approval_seconds(self) -> float:
        """Seconds that a call waits for a person, unless its facts say otherwise."""
        return 0.0 if self.approvals is None else self.approvals.wait_seconds

    def replace_policies(
        self, policies: Iterable[AgentPolicy], *, files: Sequence[str] = ()
    ) -> str:
        """Put new policies in force, all at once; return their version.

        Open calls keep their reservations. Thousands of policies take a second to
        compile: beside an event loop, call this in a thread.

        Args:
            policies: All of them; those that are not among them end.
            files: The files that changed, for the audit log.

        Raises:
            PolicyError: They contradict each other; the old ones stay in force.
            AuditError: The change could not be recorded; the old ones stay in force.
        """
        fresh = PolicySet(policies, self._policies)
        if self._records.audit is not None:
            self._records.audit.append(
                "policies", version=fresh.version, files=[*files]
            )
        self._policies = fresh
        self._records.publish("policies", {"version": fresh.version})
        return fresh.version

    def may_allow(
        self,
        agent_id: str,
        tool: str,
        facts: CallFacts = NO_FACTS,
        known: Mapping[str, JsonValue] = _NOTHING,
        *,
        complete: bool = False,
    ) -> bool:
        """Return whether the rules could allow some call of an agent to a tool.

        Args:
            agent_id: The agent.
            tool: The tool.
            facts: What the host knows about the call.
            known: Arguments that the call will have; default none. Conditions on
                others, and on all of them (`*`), could be met or not.
            complete: True if the call has no other arguments than these, and so every
                condition is judged; default False.
        """
        return self._policies.may_allow(agent_id, tool, facts, known, complete=complete)

    async def decide(self, call: ToolCall, facts: CallFacts = NO_FACTS) -> Decision:
        """Return the decision that a call would get now, and why; reserve nothing."""
        try:
            return await self._forecasts.decision(
                self._policies, self.approvals, call, facts
            )
        except Exception as error:  # noqa: BLE001  (a fault of ours is a refusal)
            return refusal_for(error, self._policies.version)

    def admit(
        self,
        call: ToolCall,
        facts: CallFacts = NO_FACTS,
        *,
        while_waiting: WhileWaiting | None = None,
        preview: Preview | None = None,
        complete: Complete | None = None,
    ) -> Permit:
        """Return the permit of a call; entering it decides and reserves.

        Args:
            call: The call. The caller has validated its arguments, and has set its
                `agent_id` from a source that the agent cannot forge.
            facts: Further facts about the call, from the host.
            while_waiting: Returns an async context manager that is entered while the
                call waits for a person, so that the caller can stop its clocks.
            preview: Returns what the call would do, in the tool's own words, if people
                are to be asked.
            complete: Returns the call with further arguments, if people are to be
                asked; it is judged again with these. GuardDeniedError from it refuses
                the call.
        """
        hold = Hold(call, facts)
        if while_waiting is not None:
            hold.while_waiting = while_waiting
        hold.preview, hold.complete = preview, complete
        return Permit(self, hold)

    async def charge(
        self, call: ToolCall, facts: CallFacts, used: Mapping[str, int]
    ) -> bool:
        """Charge what was used beside calls such as this; False: a budget is over.

        Raises:
            StoreUnavailableError: The store did not answer; nothing is charged.
        """
        now = microseconds(self._clock())
        lines = self._policies.tool_policy(call).plan.usage(facts, now)
        return await self._ledger.charge(lines, now, call.agent_id or "", used)

    async def limits(
        self, agent_id: str, tool: str, facts: CallFacts = NO_FACTS
    ) -> list[LimitState]:
        """Return the limits of an agent for calls of a tool, as they are now.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        call = ToolCall(id="limits", name=tool, agent_id=agent_id)
        return await self._forecasts.limits(self._policies, call, facts)

    async def remaining(
        self, agent_id: str, tool: str, facts: CallFacts = NO_FACTS
    ) -> Mapping[str, int | str]:
        """Return what each limit leaves an agent for calls of a tool, by label.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        states = await self.limits(agent_id, tool, facts)
        return {state.label: state.left for state in states}

    async def check(self) -> None:
        """Check that the store answers, if the failure mode is `closed`.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        await self._ledger.check()

    async def record_unknown(
        self,
        call: ToolCall,
        detail: str = "the agent has no tool of this name",
        reason: Reason = "no_tool",
    ) -> None:
        """Record a call that is refused before rules are asked.

        Args:
            call: The call, of what does not exist, or not for its agent.
            detail: The cause, in words; default: there is no such tool.
            reason: The cause, as one word.

        Raises:
            AuditError: It cannot be recorded.
        """
        await self._records.unknown(call, deny(reason, detail, self.policy_version))

    async def reset(self, agent_id: str, *, by: str) -> int:
        """Set an agent's counters back to zero; return how many there were.

        Holds of open calls stay. The reset is recorded before it is done.

        Args:
            agent_id: The agent. Counters that it shares with others (`per="tool"`,
                `"global"`) stay.
            by: The name of the administrator; never an agent.

        Raises:
            InvalidInputError: `by` is empty or an agent, or the agent has no policy.
            StoreUnavailableError: The store did not answer.
            AuditError: The act could not be recorded; nothing was done.
        """
        self._policies.check_reset(agent_id, by)
        _log.warning("counters of agent %s reset by %r", agent_id, by)
        await self._records.event("reset", agent_id=agent_id, by=by)
        self._loops.forget(agent_id)
        return await self._ledger.reset(agent_prefix(agent_id))

    async def enter(self, hold: Hold) -> None:
        """Decide about a call and reserve its cost; `Permit` calls it."""
        asked = hold.call
        while True:
            try:
                policies = self._policies
                tool_policy = policies.tool_policy(hold.call)
                ruling = await tool_policy.ruling_on(hold.call, hold.facts)
                if ruling.verdict != "ask":
                    await self._reserve(hold, policies, tool_policy, ruling, None)
                    return
                if hold.complete is None or self.approvals is None:
                    await self._enter_asked(hold, policies, ruling)
                    return
                complete, hold.complete = hold.complete, None
                hold.call = asked = await complete(asked)
            except ApprovalTaken:
                hold.call = asked
            except Exception as error:  # noqa: BLE001  (a fault of ours is a refusal)
                decision = await self._refusal_for(error)
                break
        await self._records.refusal(hold, decision)
        raise decision.to_error()

    async def _enter_asked(
        self, hold: Hold, policies: PolicySet, ruling: Ruling
    ) -> None:
        """Ask a person about a call, judge it again, and reserve its cost.

        Raises:
            CallDenied: A person, a rule or a limit refuses it.
            ApprovalTaken: An equal call has used the approval.
        """
        answer, approvals = await self._ask(hold, policies, ruling)
        async with approvals.turn(answer):
            if await approvals.is_used(answer):
                raise ApprovalTaken
            # Policies may have changed while a person decided, and so may the call.
            hold.call, policies = answer.call, self._policies
            tool_policy = policies.tool_policy(hold.call)
            ruling = await tool_policy.ruling_on(hold.call, hold.facts)
            check_approvers(answer, ruling, policies.version)
            await self._reserve(hold, policies, tool_policy, ruling, answer)

    async def _reserve(
        self,
        hold: Hold,
        policies: PolicySet,
        tool_policy: ToolPolicy,
        ruling: Ruling,
        answer: ApprovalOutcome | None,
    ) -> None:
        """Reserve the cost of a call that rules let pass, and use its approval.

        Raises:
            CallDenied: A rule or a limit refuses it.
            ApprovalTaken: An equal call has used the approval.
        """
        if ruling.verdict == "deny":
            raise CallDenied(from_rules(ruling, policies.version))
        now = microseconds(self._clock())
        hold.prepare(tool_policy.plan, ruling, policies.version, now)
        if self._ledger.sync is None or tool_policy.caps is not NO_CAPS:
            await self._take(hold, tool_policy)
        elif hold.lines.limits:
            hold.found = self._ledger.reserve_sync(hold.number, hold.lines, hold.now)
            hold.store = hold.sync = self._ledger.sync
        if not hold.found[0]:
            raise CallDenied(hold.make_decision())
        try:
            if answer is not None or self._ledger.away:
                await self._confirm(hold, answer)
            busy = self._records.admission(hold)
            if busy is not None:
                await busy.wait()
        except BaseException:
            self._loops.take_back(hold.call, hold.facts, hold.loop_entry)
            await self.settle(hold, [0] * len(hold.levels))
            raise
        hold.loop_entry.admitted = True

    async def _refusal_for(self, error: Exception) -> Decision:
        if isinstance(error, AuditError):
            raise error
        if isinstance(error, StoreUnavailableError):
            await self._ledger.on_outage(error.message)
        return refusal_for(error, self._policies.version)

    async def settle(self, hold: Hold, actual: Sequence[int] | None) -> None:
        """Settle a hold; `Permit` calls it."""
        if hold.store is not None and hold.levels:
            of = hold.number, hold.lines
            await self._ledger.settle(*of, hold.store, hold.sync, actual)

    def record(
        self,
        hold: Hold,
        cost: Mapping[str, int],
        status: str,
        error_kind: str | None,
        result: object = None,
        *,
        settled: bool = False,
    ) -> None:
        """Record the outcome of a call; `Permit` calls it.

        Raises:
            AuditBusyError: Other processes write to the log; `wait` records it later.
            AuditError: The outcome cannot be recorded.
        """
        if hold.track_results and settled:
            ending = status, error_kind, result
            self._loops.record_result(hold.call, hold.facts, ending)
        if self._records.audit is not None:
            self._records.outcome(hold, cost, status, error_kind, result)

    async def _ask(
        self, hold: Hold, policies: PolicySet, ruling: Ruling
    ) -> tuple[ApprovalOutcome, Approvals]:
        """Ask a person, unless the limits refuse anyway; return the approval.

        Raises:
            CallDenied: The person refused, or there is no one to ask.
        """
        call, facts = hold.call, hold.facts
        expected = await self._forecasts.by_limits(policies, ruling, call, facts)
        if expected.verdict == "deny":
            raise CallDenied(expected)
        approvals = self.approvals
        if approvals is None:
            detail = "nobody can be asked"
            raise CallDenied(deny("approval_unavailable", detail, policies.version))
        await self._records.refusal(hold, expected)
        wait, now = facts.approval_seconds, anyio.current_time()
        if hold.asks_until is None:
            hold.asks_until = now + (approvals.wait_seconds if wait is None else wait)
        left = max(0.0, hold.asks_until - now)
        async with hold.while_waiting():
            answer = await approvals.ask(
                call, facts, expected, wait_seconds=left, preview=hold.preview
            )
        if answer.approved:
            return answer, approvals
        raise CallDenied(not_approved(answer, self._policies.version, park=facts.park))

    async def use_approval(self, answer: ApprovalOutcome) -> bool:
        """As `Approvals.use`; one that an agent gave does not count."""
        if self.approvals is None:
            return False
        if any(map(self._policies.is_agent_name, answer.approved_by)):
            return False
        return await self.approvals.use(answer)

    async def _take(self, hold: Hold, tool_policy: ToolPolicy) -> None:
        """Reserve what a call needs, all or nothing, unless it continues a loop.

        Raises:
            CallDenied: It continues a loop.
        """
        if tool_policy.caps is not NO_CAPS:
            entered = self._loops.enter(tool_policy.caps, hold.call, hold.facts)
            if not isinstance(entered, LoopEntry):
                raise CallDenied(loop_detected(hold.ruling, entered, hold.version))
            hold.loop_entry = entered
        taken = False
        try:
            if hold.lines.limits:
                agent_id = hold.call.agent_id or ""
                reserved = await self._ledger.reserve(
                    hold.number, hold.lines, hold.now, agent_id
                )
                hold.found, hold.lines, hold.store, hold.sync, hold.degraded = reserved
            taken = hold.found[0]
            hold.track_results = tool_policy.caps.identical is not None
        finally:
            if not taken:
                self._loops.take_back(hold.call, hold.facts, hold.loop_entry)

    async def _confirm(self, hold: Hold, answer: ApprovalOutcome | None) -> None:
        """Use an approval up, and note that the store is there again.

        Raises:
            ApprovalTaken: An equal call has used the approval.
            CallDenied: The approval was withdrawn, or does not count.
        """
        if answer is not None and not await self.use_approval(answer):
            if self.approvals is not None and await self.approvals.is_used(answer):
                raise ApprovalTaken
            detail = "the approval does not count, or was withdrawn"
            raise CallDenied(deny("approval_denied", detail, self._policies.version))
        if self._ledger.away and self._ledger.sync is not None:
            await self._ledger.on_recovery()
