"""The guard: one decision before a call, one settlement after it."""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import traceback
from collections.abc import Iterable, Mapping, Sequence

from toolcell.core import (
    AuditError,
    InvalidInputError,
    StoreUnavailableError,
    ToolCall,
)

from .answers import circling, limited, refused, ruled
from .approval import Answer
from .approvals import Approvals
from .audit import AuditLog
from .clock import Clock, microseconds, steady_time
from .decision import Decision, Reason
from .facts import NO_FACTS, CallFacts
from .failure import FailureMode
from .ledger import NOTHING_TAKEN, Ledger
from .loop_breaker import NO_CAPS, LoopBreaker
from .memory_store import MemoryStore
from .permit import Granted, Permit
from .policy import AgentPolicy
from .quotas import Lines, MissingFacts, agent_prefix
from .rules import About, PolicySet, Ruling
from .store import NO_LIMITS, Store
from .units import show_amount

_log = logging.getLogger("toolcell.guard")


class _NotApproved(Exception):
    """No person gave leave."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason: Reason = reason


class ActionGuard:
    """Decides before a call, and settles after it; refuses whatever it cannot judge.

    One guard serves any number of threads and event loops.

    Args:
        policies: One for each agent. An agent without one may do nothing.
        store: Where counters live. Default: the memory of this process.
        audit: Where decisions and outcomes are recorded. Default: nowhere.
        approvals: Who asks people. Default: nobody, so that `ask` refuses.
        clock: Seconds since 1970, for the windows of budgets and for durations.
        on_store_failure: What happens while the store is away: `closed` refuses with
            `store_unavailable`; `local(20)` lets each agent make 20 calls in one
            outage, under its limits as this process alone counts them; `open` lets
            every call pass that a rule allows, uncounted.

    Raises:
        PolicyError: The policies contradict each other, or the failure mode is none.
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
        self._audit = audit
        self._approvals = approvals
        if approvals is not None and approvals.audit is None:
            approvals.audit = audit
        self._clock = clock
        mode = FailureMode.parse(on_store_failure)
        store = MemoryStore(clock=clock) if store is None else store
        self._ledger = Ledger(store, mode, clock, self._tell)
        self._breaker = LoopBreaker()
        self._token = secrets.token_hex(8)
        self._count = itertools.count()

    @property
    def policy_version(self) -> str:
        """The version of the policies in force."""
        return self._policies.version

    def replace_policies(self, policies: Iterable[AgentPolicy]) -> str:
        """Put new policies in force, all at once; return their version.

        Calls that are open keep what they hold.

        Raises:
            PolicyError: They contradict each other; the old ones stay in force.
        """
        fresh = PolicySet(policies)
        self._tell("policies", fresh.version)
        self._policies = fresh
        return fresh.version

    def sees(self, agent_id: str, tool: str, facts: CallFacts = NO_FACTS) -> bool:
        """Return whether some call of an agent to a tool could be allowed."""
        return self._policies.sees(agent_id, tool, facts)

    async def decide(self, call: ToolCall, facts: CallFacts = NO_FACTS) -> Decision:
        """Say what would become of a call now, and why; consume nothing."""
        try:
            return await self._explain(call, facts)
        except StoreUnavailableError as error:
            return self._refused("store_unavailable", error.message)
        except Exception as error:  # noqa: BLE001  (a fault of ours is a refusal)
            return self._fault(error)

    def admit(self, call: ToolCall, facts: CallFacts = NO_FACTS) -> Permit:
        """Return the permit of a call; entering it decides and reserves.

        Args:
            call: Its arguments are validated, and its `agent_id` is the host's word.
            facts: What else the host knows of it.
        """
        return Permit(self, call, facts)

    async def remaining(
        self, agent_id: str, tool: str, facts: CallFacts = NO_FACTS
    ) -> Mapping[str, int | str]:
        """Return what each limit leaves an agent for calls of a tool, by its label.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        call = ToolCall(id="remaining", name=tool, agent_id=agent_id)
        leave = Ruling("allow", "allowed")
        return (await self._look(self._policies, leave, call, facts)).remaining

    async def reset(self, agent_id: str, *, by: str) -> int:
        """Forget what an agent has used, and return how many counters that were.

        Holds of open calls stay. The act is recorded before it is done.

        Args:
            agent_id: Whose counters; shared ones (`per="tool"`, `"global"`) stay.
            by: The administrator; no agent.

        Raises:
            InvalidInputError: `by` is empty or an agent, or the agent has no policy.
            StoreUnavailableError: The store did not answer.
            AuditError: The act could not be recorded; nothing was done.
        """
        if not by.strip() or self._policies.names_agent(by):
            raise InvalidInputError("a reset is an act of a person, whom 'by' names")
        if not self._policies.of(agent_id):
            raise InvalidInputError(f"agent {agent_id!r} has no policy")
        _log.warning("counters of agent %s reset by %r", agent_id, by)
        if self._audit is not None:
            self._audit.append("reset", agent_id=agent_id, by=by)
        self._breaker.forget(agent_id)
        return await self._ledger.reset(agent_prefix(agent_id))

    async def enter(self, permit: Permit) -> Decision | None:
        """Decide about a permit's call and reserve; `Permit` calls it.

        Returns the refusal, or None if the call is admitted.
        """
        try:
            decision = await self._admit(permit)
            if decision is None:
                return None
        except StoreUnavailableError as error:
            decision = self._refused("store_unavailable", error.message)
        except AuditError:
            raise
        except Exception as error:  # noqa: BLE001  (a fault of ours is a refusal)
            decision = self._fault(error)
        if self._audit is not None:
            self._audit.decision(permit.call, permit.facts, decision)
        return decision

    async def leave(
        self,
        permit: Permit,
        actual: Sequence[int] | None,
        cost: Mapping[str, int],
        status: str,
        error_kind: str | None,
        result: object = None,
    ) -> None:
        """Settle a permit and record the outcome; `Permit` calls it."""
        call, facts = permit.call, permit.facts
        granted = permit.granted
        if granted is not None and granted.store is not None and granted.levels:
            await self._ledger.settle(granted.store, permit.hold_id, actual)
        if permit.watched and actual is not None:
            self._breaker.returned(call, facts, (status, error_kind, result))
        if self._audit is not None:
            shown = {unit: show_amount(unit, used) for unit, used in cost.items()}
            self._audit.outcome(
                call,
                facts,
                hold_id=permit.hold_id,
                status=status,
                duration_ms=(self._clock() - permit.started) * 1000,
                cost=shown,
                error_kind=error_kind,
                result_hash=None if result is None else self._audit.digest(result),
            )

    async def _explain(self, call: ToolCall, facts: CallFacts) -> Decision:
        policies = self._policies
        ruling = policies.judge(call, facts, explain=True)
        if ruling.verdict == "deny":
            return ruled(ruling, policies.version)
        if ruling.verdict == "ask" and self._approvals is not None:
            answer = await self._approvals.peek(call, facts)
            if answer.status == "rejected":
                return self._refused("approval_denied", answer.reason)
            if answer.approved:
                ruling = ruling.approved()
        return await self._look(policies, ruling, call, facts)

    async def _look(
        self, policies: PolicySet, ruling: Ruling, call: ToolCall, facts: CallFacts
    ) -> Decision:
        """Say what the limits would answer; take nothing."""
        about = policies.about(call)
        if about is None:
            return ruled(ruling, policies.version)
        circle = self._breaker.enter(about.caps, call, facts, count=False)
        if circle is not None:
            return circling(ruling, circle, policies.version)
        try:
            lines = Lines(about.plan, facts, microseconds(self._clock()))
        except MissingFacts as error:
            return self._refused("facts_missing", str(error))
        outcome = NO_LIMITS
        if lines.limits:
            outcome = await self._ledger.peek(lines.request("", facts))
        return limited(ruling, lines, outcome, policies.version, took=False)

    async def _admit(self, permit: Permit) -> Decision | None:
        policies = self._policies
        answer: Answer | None = None
        ruling = policies.judge(permit.call, permit.facts, explain=False)
        if ruling.verdict == "ask":
            parked = await self._look(policies, ruling, permit.call, permit.facts)
            if parked.verdict == "deny":
                return parked
            try:
                answer = await self._ask(permit, parked)
            except _NotApproved as error:
                return self._refused(error.reason, str(error))
            # Policies may have changed while a person thought, and so may the call.
            permit.call, policies = answer.call, self._policies
            ruling = policies.judge(permit.call, permit.facts, explain=False)
        about = policies.about(permit.call)
        if ruling.verdict == "deny" or about is None:
            return ruled(ruling, policies.version)
        take = self._reserve if about.caps is NO_CAPS else self._take
        decision = await take(permit, about, ruling.approved(), policies.version)
        if decision is None and (answer is not None or self._audit is not None):
            try:
                return await self._confirmed(permit, answer)
            except BaseException:
                await self._give_back(permit)
                raise
        return decision

    async def _confirmed(
        self, permit: Permit, answer: Answer | None
    ) -> Decision | None:
        """Use an approval up, and record that the call may run."""
        if answer is not None and not await self._may_use(answer):
            await self._give_back(permit)
            return self._refused("approval_denied", "the approval is used up")
        if self._audit is not None:
            self._audit.decision(
                permit.call, permit.facts, permit.decision, hold_id=permit.hold_id
            )
        return None

    async def _ask(self, permit: Permit, parked: Decision) -> Answer:
        """Ask a person, and return the leave they gave.

        Raises:
            _NotApproved: They gave none, or there is nobody.
        """
        call, facts = permit.call, permit.facts
        if self._approvals is None:
            raise _NotApproved("approval_unavailable", "nobody can be asked")
        if self._audit is not None:
            self._audit.decision(call, facts, parked)
        wait = facts.approval_seconds
        answer = await self._approvals.ask(call, facts, parked, wait_seconds=wait)
        if answer.approved:
            return answer
        if answer.status == "rejected":
            raise _NotApproved("approval_denied", answer.reason)
        raise _NotApproved("approval_unavailable", answer.reason)

    async def _may_use(self, answer: Answer) -> bool:
        """Use an approval up; an agent's approval is none."""
        approver = answer.approver or ""
        if self._approvals is None or self._policies.names_agent(approver):
            return False
        return await self._approvals.use(answer)

    async def _take(
        self, permit: Permit, about: About, ruling: Ruling, version: str
    ) -> Decision | None:
        """Reserve what a call needs, unless it goes round in circles."""
        call, facts = permit.call, permit.facts
        circle = self._breaker.enter(about.caps, call, facts, count=True)
        if circle is not None:
            return circling(ruling, circle, version)
        admitted = False
        try:
            refusal = await self._reserve(permit, about, ruling, version)
            admitted = refusal is None
        finally:
            if not admitted:
                self._breaker.leave(call, facts)
        return refusal

    async def _reserve(
        self, permit: Permit, about: About, ruling: Ruling, version: str
    ) -> Decision | None:
        """Reserve what a call needs, all or nothing; return the refusal, if any."""
        permit.started = self._clock()
        try:
            lines = Lines(about.plan, permit.facts, microseconds(permit.started))
        except MissingFacts as error:
            return self._refused("facts_missing", str(error))
        permit.hold_id = hold_id = f"{self._token}-{os.getpid()}-{next(self._count)}"
        taken = NOTHING_TAKEN
        if lines.limits:
            request = lines.request(hold_id, permit.facts)
            agent_id = permit.call.agent_id or ""
            taken = await self._ledger.reserve(request, agent_id)
            if taken.degraded == "local":
                lines.add_outage(self._ledger.outage(agent_id))
        granted = Granted(ruling, lines, taken, version)
        if not taken.outcome.admitted:
            return granted.decision()
        permit.granted = granted
        permit.watched = about.caps.identical is not None
        return None

    async def _give_back(self, permit: Permit) -> None:
        """Return all that a call holds, and forget that it was made."""
        self._breaker.leave(permit.call, permit.facts)
        granted = permit.granted
        if granted is not None and granted.store is not None and granted.levels:
            nothing = [0] * len(granted.levels)
            await self._ledger.settle(granted.store, permit.hold_id, nothing)

    def _refused(self, reason: Reason, detail: str) -> Decision:
        return refused(reason, detail, self._policies.version)

    def _fault(self, error: Exception) -> Decision:
        # Not the error's text: it may hold arguments of the call.
        at = traceback.extract_tb(error.__traceback__)[-1]
        kind = type(error).__name__
        _log.error("the guard failed: %s at %s:%s", kind, at.filename, at.lineno)
        return self._refused("guard_fault", "the guard itself failed")

    def _tell(self, event: str, word: str) -> None:
        if self._audit is not None:
            self._audit.append(event, word=word)
