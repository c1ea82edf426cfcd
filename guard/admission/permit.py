"""The permit of one call, from its admission to its settlement."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

from toolcell.core import (
    AuditError,
    InvalidInputError,
    ToolCall,
    ToolcellError,
    ToolStatus,
)

from ..audit.lock_wait import AuditBusyError
from ..stores.base import ReservationOutcome
from ..values.amounts import COUNTS, MAX_AMOUNT, Amount, parse_amount
from ..values.calls import Decision
from .decisions import remaining_by_limit
from .hold import Hold, Settlement

_log = logging.getLogger("toolcell.guard")
_NOTHING: Mapping[str, Amount] = {}


class Permit:
    """Permission for one call: `async with guard.admit(call, facts) as permit`.

    Entering decides and reserves, and raises if the call is refused. The body runs
    the call and ends with `settle(cost)`. A body that ends without `settle`, by an
    error or a cancellation too, is charged the reserved amounts, or nothing where
    `Budget.unsettled` is `refund`. A permit is for one call, and is settled once:
    later calls of `settle` change nothing.

    Raises:
        GuardDeniedError: On entering: the call is refused; the error's details are
            the decision.
        StoreUnavailableError: On entering: the store did not answer, and the failure
            mode is closed.
        AuditError: The decision, or on leaving the outcome, could not be recorded.
    """

    _state: Literal["new", "refused", "open", "settled"] = "new"
    _decision: Decision | None = None
    _due: Sequence[int] = ()

    def __init__(self, settlement: Settlement, hold: Hold) -> None:
        self._settlement = settlement
        self._hold = hold

    @property
    def call(self) -> ToolCall:
        """The call to run. If a person changed its arguments it is not the call that
        was asked for, and the arguments have to be validated again."""
        return self._hold.call

    @property
    def hold_id(self) -> str:
        """The name of the hold in records; in shared stores the name of the agent's
        topmost parent stands before it."""
        return self._hold.id

    @property
    def remaining(self) -> Mapping[str, int | str]:
        """The amount that each limit leaves, by label; after `settle` less the charge.

        It is as of the admission of the call: other calls may have come since.
        """
        if self._state == "settled" and self._due:
            hold = self._hold
            levels = [
                (used, held, due)
                for (used, held, _), due in zip(hold.levels, self._due, strict=True)
            ]
            outcome = ReservationOutcome._make(hold.found)._replace(levels=levels)
            return remaining_by_limit(hold.lines, outcome, taken=True)
        return self.decision.remaining

    @property
    def decision(self) -> Decision:
        """The decision that admitted the call.

        Raises:
            InvalidInputError: The call has not been admitted.
        """
        if self._state in ("new", "refused"):
            raise InvalidInputError(
                "the call has not been admitted",
                hint="enter it first: `async with guard.admit(call) as permit`",
            )
        if self._decision is None:
            self._decision = self._hold.make_decision()
        return self._decision

    async def __aenter__(self) -> Permit:
        """Admit the call.

        Raises:
            GuardDeniedError: The call is refused; the details are the decision.
            StoreUnavailableError: The store did not answer, and the mode is closed.
            AuditError: The decision could not be recorded.
        """
        if self._state != "new":
            raise InvalidInputError(
                "a permit is for one call; ask for another",
                hint="call `guard.admit(call)` again",
            )
        self._state = "refused"
        await self._settlement.enter(self._hold)
        self._state = "open"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._state != "open":
            return
        self._state = "settled"
        name = None if kind is None else kind.__name__
        if isinstance(error, ToolcellError):
            name = error.kind
        hold = self._hold
        cost = hold.lines.held(hold.levels)
        if error is None:
            status = "unsettled"
        else:
            status = "error" if isinstance(error, Exception) else "cancelled"
        try:
            if hold.store is not None:
                await self._settlement.settle(hold, None)
        except BaseException as stopped:
            await self._record_without_masking(stopped, cost, status, name)
            if error is None or not isinstance(stopped, AuditError):
                raise
        else:
            await self._record_without_masking(error, cost, status, name)

    async def _record_without_masking(
        self, error: BaseException | None, *outcome: Any, settled: bool = False
    ) -> None:
        """Record the outcome; an error that ended the call is raised before ours."""
        try:
            try:
                self._settlement.record(self._hold, *outcome, settled=settled)
            except AuditBusyError as busy:
                await busy.wait()
        except AuditError as unrecorded:
            if error is None:
                raise
            _log.error("the outcome of a call is not recorded: %s", unrecorded)

    async def settle(
        self,
        cost: Mapping[str, Amount] = _NOTHING,
        *,
        status: ToolStatus = "ok",
        error_kind: str | None = None,
        result: object = None,
    ) -> bool:
        """Charge the measured cost of the call, and record its outcome.

        A unit that is not named is charged as it was reserved. More than was reserved
        is charged too: the account may then be over its limit, and admits nothing.

        Args:
            cost: Measured amounts by unit.
            status: The way in which the call ended.
            error_kind: The kind of its error, if it had one.
            result: The returned value; the log gets a hash of it.

        Returns:
            False, and changes nothing, if the call was settled before.

        Raises:
            InvalidInputError: An amount cannot be used; the call is still open.
            AuditError: The outcome cannot be recorded; the cost is charged.
        """
        measured: dict[str, int] = {}
        for unit, value in cost.items():
            if type(value) is int and unit in COUNTS and 0 <= value <= MAX_AMOUNT:
                measured[unit] = value
            else:
                measured[unit] = parse_amount(unit, value)
        if self._state != "open":
            return False
        self._state = "settled"
        hold = self._hold
        self._due = due = hold.lines.due(hold.found[3], measured)
        if hold.sync is not None:
            hold.sync.settle_deferred(hold.number, due)
        elif hold.store is not None:
            try:
                await self._settlement.settle(hold, due)
            except BaseException as stopped:
                outcome = measured, status, error_kind, result
                await self._record_without_masking(stopped, *outcome, settled=True)
                raise
        record = self._settlement.record
        try:
            record(hold, measured, status, error_kind, result, settled=True)
        except AuditBusyError as busy:
            await busy.wait()
        return True
