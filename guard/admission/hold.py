"""What the guard holds for one call, and who settles it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from toolcell.core import ToolCall

from ..stores.base import (
    NO_LIMITS,
    AccountLevel,
    OutcomeTuple,
    ReservationOutcome,
    Store,
    SyncStore,
)
from ..values.call_facts import CallFacts
from ..values.decision import Decision, Degraded, Ruling
from .decisions import from_limits, from_rules
from .hold_ids import hold_id
from .quotas import Lines

Parked = Callable[[], AbstractAsyncContextManager[object]]
"""Returns what is entered while a call waits for a person."""


@dataclass(slots=True, eq=False)
class LoopEntry:
    """A call that the loop detector counted before it was decided."""

    tool: str
    admitted: bool = False


NOT_TRACKED = LoopEntry("")
"""Stands for the calls that no loop detector counts."""


class Hold:
    """The state of one call in the guard: what was ruled, and what is held for it.

    The guard alone writes it. A permit reads it, and hands it back to be settled.
    """

    # Most calls never need to say more than these.
    lines: Lines
    """The limits that count, with `ruling` and `version`, once rules let it pass."""

    ruling: Ruling
    version: str
    number = 0
    """The number of the hold in this process."""

    store: Store | None = None
    """Where the hold is; None where nothing is kept."""

    sync: SyncStore | None = None
    """The same store, where it never waits."""

    degraded: Degraded = ""
    found: OutcomeTuple = NO_LIMITS
    """What the store answered."""

    now = 0
    """When it was asked, in microseconds."""

    track_results = False
    loop_entry = NOT_TRACKED
    """The call among those of its run, where loops are watched for."""

    parked: Parked = nullcontext

    def __init__(self, call: ToolCall, facts: CallFacts) -> None:
        self.call = call
        """The call to run; a person may have changed its arguments."""

        self.facts = facts

    @property
    def id(self) -> str:
        """The name of the hold in stores of several processes, and in records."""
        return hold_id(self.number)

    @property
    def levels(self) -> Sequence[AccountLevel]:
        """What the accounts had used and held, and what is held of them."""
        return self.found[3]

    def make_decision(self) -> Decision:
        """Return the decision that the answer of the store makes."""
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
        """Decide about a call, and reserve what it needs.

        Raises:
            GuardDeniedError: The call is refused; the details are the decision.
            AuditError: The decision could not be recorded.
        """

    async def settle(self, hold: Hold, actual: Sequence[int] | None) -> None:
        """Charge these amounts, or what is due unsettled where None."""

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
        """Record what came of a call.

        Raises:
            AuditBusyError: Once others have left the log it will be written.
            AuditError: It cannot be recorded.
        """
