"""The state of one call in the guard, who settles it, and what is recorded of it."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import anyio
import anyio.to_thread

from toolcell.core import ToolCall
from toolcell.core.storage.processes import in_each_child

from ..approvals.types import Preview
from ..audit.lock_wait import AuditBusyError
from ..audit.log import AuditLog
from ..stores.base import (
    NO_LIMITS,
    AccountLevel,
    OutcomeTuple,
    ReservationOutcome,
    Store,
    SyncStore,
)
from ..values.amounts import Clock, microseconds, show_amount
from ..values.calls import NO_FACTS, CallFacts, Decision, Degraded, Ruling
from .decisions import from_limits, from_rules
from .quotas import LimitPlan, Lines

_process = secrets.token_hex(8)
new_number = itertools.count().__next__
"""Returns a number that no other hold of this process has."""


def _renew() -> None:
    global _process
    _process = secrets.token_hex(8)


in_each_child(_renew)


def hold_id(number: int) -> str:
    """Return a name that no other hold has, from its number in this process."""
    return f"{_process}-{number}"


WhileWaiting = Callable[[], AbstractAsyncContextManager[object]]
"""Returns a context manager that is entered while a call waits for a person."""


Complete = Callable[[ToolCall], Awaitable[ToolCall]]
"""Returns a call with arguments that only people are asked about, before they are. It
may raise GuardDeniedError; `reason` in its details is `bad_call` by default."""


@dataclass(slots=True, eq=False)
class LoopEntry:
    """A call that the loop detector counted before it was decided."""

    tool: str
    admitted: bool = False


NOT_TRACKED = LoopEntry("")
"""Stands for calls that the loop detector does not count."""


class Hold:
    """The state of one call in the guard: its ruling, and the amounts held for it.

    `ActionGuard` alone writes it, between `admit` and the end of `enter`. A `Permit`
    reads it, and hands it back to be settled. If `store` is None nothing is held:
    no limit counts the call, or the call is refused.
    """

    # Defaults of the class: most calls change few of them.
    lines: Lines
    """The limits that count, with `ruling` and `version`, once rules let it pass."""

    ruling: Ruling
    version: str
    number = 0
    """The number of the hold in this process."""

    store: Store | None = None
    """The store that has the hold; None if nothing is held."""

    sync: SyncStore | None = None
    """The same store, if it never waits."""

    degraded: Degraded = ""
    found: OutcomeTuple = NO_LIMITS
    """The answer of the store."""

    now = 0
    """The time of that answer, in microseconds."""

    subject = ""
    """The name of the call in its records."""

    track_results = False
    loop_entry = NOT_TRACKED
    """The entry of the call in the loop detector, if loops are watched for."""

    while_waiting: WhileWaiting = nullcontext
    preview: Preview | None = None
    """Returns what the call would do, in the tool's own words."""

    complete: Complete | None = None
    """Returns the call with all that people are asked about; None: it is complete."""

    asks_until: float | None = None
    """The end of the time to wait for people, by the event loop's clock."""

    def __init__(self, call: ToolCall, facts: CallFacts) -> None:
        self.call = call
        """The call to run; a person may have changed its arguments."""

        self.facts = facts

    def prepare(self, plan: LimitPlan, ruling: Ruling, version: str, now: int) -> None:
        """Note what is to be reserved for a call that rules let pass.

        Raises:
            MissingFacts: A limit needs to know the run or the turn.
        """
        self.now = now
        self.lines = plan.lines(self.facts, now)
        self.ruling = ruling if ruling.verdict == "allow" else ruling.approved()
        self.version = version
        self.number = new_number()

    @property
    def id(self) -> str:
        """The name of the hold in records; in shared stores its home stands before."""
        return hold_id(self.number)

    @property
    def levels(self) -> Sequence[AccountLevel]:
        """The use of each account before the call, and the amount held for the call."""
        return self.found[3]

    def make_decision(self) -> Decision:
        """Return the decision that the ruling and the answer of the store make."""
        ruling, version = self.ruling, self.version
        if self.degraded == "open" or not self.lines.limits:
            return from_rules(ruling, version, self.degraded)
        outcome = ReservationOutcome._make(self.found)
        return from_limits(
            *(ruling, self.lines, outcome, self.now, version),
            took=True,
            degraded=self.degraded,
        )


class Settlement(Protocol):
    """The part of the guard that a permit needs."""

    async def enter(self, hold: Hold) -> None:
        """Decide about a call, and reserve its cost.

        Raises:
            GuardDeniedError: The call is refused; the details are the decision.
            AuditError: The decision could not be recorded.
        """

    async def settle(self, hold: Hold, actual: Sequence[int] | None) -> None:
        """Charge these amounts; None charges what an unsettled call owes."""

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
        """Record the outcome of a call.

        Raises:
            AuditBusyError: Other processes write to the log; `wait` records it later.
            AuditError: The outcome cannot be recorded.
        """


GuardListener = Callable[[str, Mapping[str, str]], None]
"""Receives events that are of no call, by their names and fields in the audit log."""

_VERDICTS = 1_024
"""Verdicts whose text is noted. When it is reached all are forgotten."""


class CallRecords:
    """Writes what the guard has to record of calls, without blocking an event loop.

    Args:
        audit: The log; None: nothing is recorded.
        clock: Returns seconds since 1970 (UTC), as the times of holds.
    """

    def __init__(self, audit: AuditLog | None, clock: Clock) -> None:
        self.audit = audit
        self.listeners: list[GuardListener] = []
        self._clock = clock
        self._verdicts: dict[tuple[Ruling, str], str] = {}
        self._last: tuple[Ruling | None, str, str] = (None, "", "")

    def admission(self, hold: Hold) -> AuditBusyError | None:
        """Record that a call may run, whose maximum is reserved.

        Returns:
            None if it is recorded. An error that waits for other writers, and records
            it then.

        Raises:
            AuditError: It cannot be recorded.
        """
        if self.audit is None:
            return None
        verdict: Decision | str
        # `remaining` can be counted from the log, and takes long to write.
        if hold.lines.on_trial or hold.degraded:
            verdict = hold.make_decision()._replace(remaining={})
        else:
            ruling, version, verdict = self._last
            if ruling is not hold.ruling or version is not hold.version:
                verdict = self._verdict(hold.ruling, hold.version)
                # To look it up by its hash takes longer.
                self._last = hold.ruling, hold.version, verdict
        return self._decide(self.audit, hold, verdict, hold.id)

    async def refusal(self, hold: Hold, decision: Decision) -> None:
        """Record the decision about a call that does not run, or not yet.

        Raises:
            AuditError: It cannot be recorded.
        """
        if self.audit is not None:
            busy = self._decide(self.audit, hold, decision)
            if busy is not None:
                await busy.wait()

    async def unknown(self, call: ToolCall, decision: Decision) -> None:
        """Record the refusal of a call that no tool is there for.

        Raises:
            AuditError: It cannot be recorded.
        """
        if self.audit is None:
            return
        try:
            self.audit.decision(call, NO_FACTS, decision, wait=False)
        except AuditBusyError as busy:
            await busy.wait()

    def _verdict(self, ruling: Ruling, version: str) -> str:
        assert self.audit is not None
        verdict = self._verdicts.get((ruling, version))
        if verdict is None:
            if len(self._verdicts) >= _VERDICTS:
                self._verdicts.clear()
            verdict = self.audit.verdict(from_rules(ruling, version))
            self._verdicts[ruling, version] = verdict
        return verdict

    def _decide(
        self,
        audit: AuditLog,
        hold: Hold,
        decision: Decision | str,
        hold_id: str | None = None,
    ) -> AuditBusyError | None:
        call, facts = hold.call, hold.facts
        hold.subject = subject = audit.subject(call, facts, hold_id)
        try:
            audit.decision(call, facts, decision, subject=subject, wait=False)
        except AuditBusyError as busy:
            return busy
        return None

    def outcome(
        self,
        hold: Hold,
        cost: Mapping[str, int],
        status: str,
        error_kind: str | None,
        result: object,
    ) -> None:
        """Record the outcome of a call.

        Raises:
            AuditBusyError: Other processes write to the log; `wait` records it later.
            AuditError: The outcome cannot be recorded.
        """
        if self.audit is None:
            return
        shown: Mapping[str, int | str] = cost
        if "usd" in cost:
            shown = {**cost, "usd": show_amount("usd", cost["usd"])}
        self.audit.outcome(
            hold.subject,
            status=status,
            duration_ms=(microseconds(self._clock()) - hold.now) / 1000,
            cost=shown,
            error_kind=error_kind,
            result_hash=None if result is None else self.audit.digest(result),
            wait=False,
        )

    async def event(self, event: str, **fields: str) -> None:
        """Record an event that is of no call, even if cancelled meanwhile.

        Raises:
            AuditError: The event cannot be recorded.
        """
        if self.audit is not None:
            record = partial(self.audit.append, event, **fields)
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(record)
        self.publish(event, fields)

    def publish(self, event: str, fields: Mapping[str, str]) -> None:
        """Call the listeners with an event."""
        for listener in self.listeners:
            listener(event, fields)
