"""The guard: one decision before a call, one settlement after it."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import anyio
import anyio.to_thread

from toolcell.core import AuditError, InvalidInputError, StoreUnavailableError, ToolCall

from ..approvals.approvals import Approvals
from ..approvals.types import ApprovalOutcome
from ..audit.lock_wait import AuditBusyError
from ..audit.log import AuditLog
from ..policy.policy import AgentPolicy
from ..stores.base import NO_LIMITS, Store
from ..stores.memory import MemoryStore
from ..values.amounts import show_amount
from ..values.call_facts import NO_FACTS, CallFacts
from ..values.clock import MICROSECONDS, Clock, microseconds, steady_time
from ..values.decision import NO_CAPS, Decision, Reason, Ruling
from .compiled_policy import PolicySet, ToolPolicy
from .decisions import deny, from_limits, from_rules, loop_detected
from .failure_mode import FailureMode
from .hold import Hold, LoopEntry, Parked
from .hold_ids import new_number
from .ledger import Ledger
from .loop_detector import LoopDetector
from .permit import Permit
from .quotas import MissingFacts, agent_prefix

_log = logging.getLogger("toolcell.guard")


class _CallDenied(Exception):
    """The answer to a call is no."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.detail)
        self.decision = decision


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
        self._ledger = Ledger(store, mode, clock, self._record_event)
        self._loops = LoopDetector()

    @property
    def policy_version(self) -> str:
        """The version of the policies in force."""
        return self._policies.version

    @property
    def approval_seconds(self) -> float:
        """How long a call waits for a person, where its facts do not say."""
        return 0.0 if self._approvals is None else self._approvals.wait_seconds

    def replace_policies(self, policies: Iterable[AgentPolicy]) -> str:
        """Put new policies in force, all at once; return their version.

        Calls that are open keep what they hold. Thousands of policies take a second:
        call it in a thread, beside an event loop.

        Raises:
            PolicyError: They contradict each other; the old ones stay in force.
        """
        fresh = PolicySet(policies, self._policies)
        if self._audit is not None:
            self._audit.append("policies", version=fresh.version)
        self._policies = fresh
        return fresh.version

    def may_allow(self, agent_id: str, tool: str, facts: CallFacts = NO_FACTS) -> bool:
        """Return whether some call of an agent to a tool could be allowed."""
        return self._policies.may_allow(agent_id, tool, facts)

    async def decide(self, call: ToolCall, facts: CallFacts = NO_FACTS) -> Decision:
        """Say what would become of a call now, and why; consume nothing."""
        try:
            return await self._explain(call, facts)
        except Exception as error:  # noqa: BLE001  (a fault of ours is a refusal)
            return self._because_of(error)

    def admit(
        self,
        call: ToolCall,
        facts: CallFacts = NO_FACTS,
        *,
        parked: Parked | None = None,
    ) -> Permit:
        """Return the permit of a call; entering it decides and reserves.

        Args:
            call: Its arguments are validated, and its `agent_id` is the host's word.
            facts: What else the host knows of it.
            parked: Entered while the call waits for a person, so that clocks can be
                stopped meanwhile; an async context manager.
        """
        hold = Hold(call, facts)
        if parked is not None:
            hold.parked = parked
        return Permit(self, hold)

    async def remaining(
        self, agent_id: str, tool: str, facts: CallFacts = NO_FACTS
    ) -> Mapping[str, int | str]:
        """Return what each limit leaves an agent for calls of a tool, by its label.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        call = ToolCall(id="remaining", name=tool, agent_id=agent_id)
        allowed = Ruling("allow", "allowed")
        try:
            return (
                await self._peek_limits(self._policies, allowed, call, facts)
            ).remaining
        except MissingFacts:
            return {}

    async def check(self) -> None:
        """Look whether the store answers, where no call is admitted without it.

        Raises:
            StoreUnavailableError: It does not, and the failure mode is `closed`.
        """
        await self._ledger.check()

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
        if not by.strip() or self._policies.is_agent_name(by):
            raise InvalidInputError(
                "a reset is an act of a person, whom 'by' names",
                hint="pass the person's name as `by`, not an agent's id",
            )
        if not self._policies.of(agent_id):
            raise InvalidInputError(
                f"agent {agent_id!r} has no policy",
                hint="name an agent that has one; case counts",
            )
        _log.warning("counters of agent %s reset by %r", agent_id, by)
        if self._audit is not None:
            record = partial(self._audit.append, "reset", agent_id=agent_id, by=by)
            await anyio.to_thread.run_sync(record)
        self._loops.forget(agent_id)
        return await self._ledger.reset(agent_prefix(agent_id))

    async def enter(self, hold: Hold) -> None:
        """Decide about a call and reserve what it needs; `Permit` calls it."""
        try:
            policies = self._policies
            tool_policy = policies.tool_policy(hold.call)
            ruling = tool_policy.judge(hold.call, hold.facts)
            answer: ApprovalOutcome | None = None
            if ruling.verdict == "ask":
                answer = await self._ask(hold, policies, ruling)
                # Policies may have changed while a person thought, and so may the call.
                hold.call, policies = answer.call, self._policies
                tool_policy = policies.tool_policy(hold.call)
                ruling = tool_policy.judge(hold.call, hold.facts)
            if ruling.verdict == "deny":
                decision = from_rules(ruling, policies.version)
            else:
                self._prepare(hold, tool_policy, ruling, policies.version)
                if self._ledger.sync is None or tool_policy.caps is not NO_CAPS:
                    await self._take(hold, tool_policy)
                elif hold.lines.limits:
                    hold.found = self._ledger.reserve_sync(
                        hold.number, hold.lines, hold.now
                    )
                    hold.store = hold.sync = self._ledger.sync
                if hold.found[0]:
                    if (
                        answer is not None
                        or self._audit is not None
                        or self._ledger.away
                    ):
                        await self._confirm(hold, tool_policy, answer)
                    hold.loop_entry.admitted = True
                    return
                decision = hold.make_decision()
        except AuditError:
            raise
        except Exception as error:  # noqa: BLE001  (a fault of ours is a refusal)
            decision = self._because_of(error)
            if isinstance(error, StoreUnavailableError):
                await self._ledger.on_outage(error.message)
        await self._record(hold, decision)
        raise decision.to_error()

    async def settle(self, hold: Hold, actual: Sequence[int] | None) -> None:
        """Settle what is held; `Permit` calls it."""
        if hold.store is not None and hold.levels:
            await self._ledger.settle(hold.number, hold.store, hold.sync, actual)

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
        """Record what came of a call; `Permit` calls it.

        Raises:
            AuditBusyError: Once others have left the log it will be written.
            AuditError: It cannot be recorded.
        """
        call, facts = hold.call, hold.facts
        if hold.track_results and settled:
            self._loops.record_result(call, facts, (status, error_kind, result))
        if self._audit is not None:
            shown: Mapping[str, int | str] = cost
            if "usd" in cost:
                shown = {**cost, "usd": show_amount("usd", cost["usd"])}
            self._audit.outcome(
                call,
                facts,
                hold_id=hold.id,
                status=status,
                duration_ms=(microseconds(self._clock()) - hold.now) / 1000,
                cost=shown,
                error_kind=error_kind,
                result_hash=None if result is None else self._audit.digest(result),
                wait=False,
            )

    async def _explain(self, call: ToolCall, facts: CallFacts) -> Decision:
        policies = self._policies
        ruling = policies.tool_policy(call).judge(call, facts, explain=True)
        if ruling.verdict == "deny":
            return from_rules(ruling, policies.version)
        if ruling.verdict == "ask" and self._approvals is not None:
            answer = await self._approvals.peek(call, facts)
            if answer.status == "rejected":
                return self._refused("approval_denied", answer.reason)
            if answer.approved:
                ruling = ruling.approved()
        return await self._peek_limits(policies, ruling, call, facts)

    async def _peek_limits(
        self, policies: PolicySet, ruling: Ruling, call: ToolCall, facts: CallFacts
    ) -> Decision:
        """Say what the limits would answer; take nothing."""
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

    async def _ask(
        self, hold: Hold, policies: PolicySet, ruling: Ruling
    ) -> ApprovalOutcome:
        """Ask a person, unless the limits refuse anyway; return the leave they gave.

        Raises:
            _Refused: They gave none, or there is nobody.
        """
        call, facts = hold.call, hold.facts
        parked = await self._peek_limits(policies, ruling, call, facts)
        if parked.verdict == "deny":
            raise _CallDenied(parked)
        if self._approvals is None:
            detail = "nobody can be asked"
            raise _CallDenied(self._refused("approval_unavailable", detail))
        await self._record(hold, parked)
        wait = facts.approval_seconds
        async with hold.parked():
            answer = await self._approvals.ask(call, facts, parked, wait_seconds=wait)
        if answer.approved:
            return answer
        said_no = answer.status == "rejected"
        reason: Reason = "approval_denied" if said_no else "approval_unavailable"
        raise _CallDenied(self._refused(reason, answer.reason))

    async def _may_use(self, answer: ApprovalOutcome) -> bool:
        """Use an approval up; an agent's approval is none."""
        approver = answer.approver or ""
        if self._approvals is None or self._policies.is_agent_name(approver):
            return False
        return await self._approvals.use(answer)

    def _prepare(
        self, hold: Hold, tool_policy: ToolPolicy, ruling: Ruling, version: str
    ) -> None:
        """Note what a call needs.

        Raises:
            MissingFacts: A limit needs to know the run or the turn.
        """
        hold.now = now = round(self._clock() * MICROSECONDS)
        hold.lines = tool_policy.plan.lines(hold.facts, now)
        hold.ruling = ruling if ruling.verdict == "allow" else ruling.approved()
        hold.version = version
        hold.number = new_number()

    async def _take(self, hold: Hold, tool_policy: ToolPolicy) -> None:
        """Take what a call needs, all or nothing, unless it goes round in circles.

        Raises:
            _Refused: It does.
        """
        if tool_policy.caps is not NO_CAPS:
            entered = self._loops.enter(tool_policy.caps, hold.call, hold.facts)
            if not isinstance(entered, LoopEntry):
                raise _CallDenied(loop_detected(hold.ruling, entered, hold.version))
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
                self._loops.leave(hold.call, hold.facts, hold.loop_entry)

    async def _confirm(
        self, hold: Hold, tool_policy: ToolPolicy, answer: ApprovalOutcome | None
    ) -> None:
        """Use an approval up, and record that the call may run.

        Raises:
            _Refused: The approval is used up.
        """
        try:
            if answer is not None and not await self._may_use(answer):
                detail = "the approval is used up"
                raise _CallDenied(self._refused("approval_denied", detail))
            if self._ledger.away and self._ledger.sync is not None:
                await self._ledger.on_recovery()
            if self._audit is not None:
                # What remains can be counted from the log, and takes long to write.
                if hold.lines.on_trial or hold.degraded:
                    decision = hold.make_decision()._replace(remaining={})
                else:
                    decision = from_rules(hold.ruling, hold.version)
                await self._record(hold, decision, hold_id=hold.id)
        except BaseException:
            self._loops.leave(hold.call, hold.facts, hold.loop_entry)
            await self.settle(hold, [0] * len(hold.levels))
            raise

    def _refused(self, reason: Reason, detail: str) -> Decision:
        return deny(reason, detail, self._policies.version)

    def _because_of(self, error: Exception) -> Decision:
        """Return the refusal that an error stands for; any other is our fault."""
        if isinstance(error, _CallDenied):
            return error.decision
        if isinstance(error, MissingFacts):
            return self._refused("facts_missing", str(error))
        if isinstance(error, StoreUnavailableError):
            return self._refused("store_unavailable", error.message)
        # Not the error's text: it may hold arguments of the call.
        at = traceback.extract_tb(error.__traceback__)[-1]
        kind = type(error).__name__
        _log.error("the guard failed: %s at %s:%s", kind, at.filename, at.lineno)
        return self._refused("guard_fault", "the guard itself failed")

    async def _record(
        self, hold: Hold, decision: Decision, *, hold_id: str | None = None
    ) -> None:
        """Record what was decided; wait for other writers off the loop."""
        if self._audit is None:
            return
        try:
            self._audit.decision(
                hold.call, hold.facts, decision, hold_id=hold_id, wait=False
            )
        except AuditBusyError as busy:
            await busy.wait()

    async def _record_event(self, event: str, mode: str) -> None:
        if self._audit is not None:
            record = partial(self._audit.append, event, mode=mode)
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(record)
