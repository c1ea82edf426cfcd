"""The guard's records in its audit log: decisions, outcomes and events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import anyio
import anyio.to_thread

from toolcell.core import ToolCall

from ..audit.lock_wait import AuditBusyError
from ..audit.log import AuditLog
from ..values.amounts import show_amount
from ..values.call_facts import NO_FACTS
from ..values.clock import Clock, microseconds
from ..values.decision import Decision, Ruling
from .decisions import from_rules
from .hold import Hold

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
        for each in self.listeners:
            each(event, fields)
