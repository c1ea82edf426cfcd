"""The guard's records in its audit log: decisions, outcomes and events."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import anyio
import anyio.to_thread

from ..audit.lock_wait import AuditBusyError
from ..audit.log import AuditLog
from ..values.amounts import show_amount
from ..values.clock import Clock, microseconds
from ..values.decision import Decision
from .hold import Hold


class CallRecords:
    """Writes what the guard has to record of calls, without blocking an event loop.

    Args:
        audit: The log; None: nothing is recorded.
        clock: Returns seconds since 1970 (UTC), as the times of holds.
    """

    def __init__(self, audit: AuditLog | None, clock: Clock) -> None:
        self.audit = audit
        self._clock = clock

    async def decision(
        self, hold: Hold, decision: Decision, *, hold_id: str | None = None
    ) -> None:
        """Record a decision; wait for other writers in a thread.

        Raises:
            AuditError: The decision cannot be recorded.
        """
        if self.audit is None:
            return
        hold.subject = self.audit.subject(hold.call, hold.facts, hold_id)
        try:
            self.audit.decision(
                hold.call, hold.facts, decision, subject=hold.subject, wait=False
            )
        except AuditBusyError as busy:
            await busy.wait()

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
        if self.audit is None:
            return
        record = partial(self.audit.append, event, **fields)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(record)
