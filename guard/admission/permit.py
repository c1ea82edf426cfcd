"""The leave for one call, from its admission to its settlement."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from toolcell.core import (
    AuditError,
    InvalidInputError,
    ToolCall,
    ToolcellError,
    ToolStatus,
)

from ..audit.lock_wait import AuditBusyError
from ..stores.base import NO_LIMITS, Found, Level, Outcome, Store
from ..stores.memory import MemoryStore
from ..values.amounts import Amount, parse_amount
from ..values.call_facts import CallFacts
from ..values.decision import Decision, Degraded
from .compiled_policy import Ruling
from .decisions import left, limited, ruled
from .hold_ids import hold_id
from .loop_detector import UNWATCHED
from .quotas import Lines

if TYPE_CHECKING:
    from .guard import ActionGuard

Parked = Callable[[], AbstractAsyncContextManager[object]]
_log = logging.getLogger("toolcell.guard")
_NOTHING: Mapping[str, Amount] = {}


class Permit:
    """The leave for one call: `async with guard.admit(call, facts) as permit`.

    Entering raises if the call is refused. A call that is left without `settle` is
    charged all that it held, where its budget does not say otherwise.
    """

    # Most permits never need to say more than these.
    lines: Lines
    """What it rests on, with `ruling` and `version`, once rules have let it pass."""

    ruling: Ruling
    version: str
    number = 0
    """Of its hold in this process."""

    store: Store | None = None
    """Where the hold is; None where nothing is kept."""

    degraded: Degraded = ""
    found: Found = NO_LIMITS
    """What the store said."""

    now = 0
    """When it was asked, in microseconds."""

    watched = False
    entry = UNWATCHED
    """Among the calls of its run, where loops are watched."""

    _decision: Decision | None = None
    _due: Sequence[int] = ()
    state: Literal["new", "refused", "open", "settled"] = "new"

    parked: Parked = nullcontext
    """Entered while the call waits for a person."""

    def __init__(self, guard: ActionGuard, call: ToolCall, facts: CallFacts) -> None:
        self._guard = guard
        self.call = call
        """The call to run; not the one asked for, if a person changed its arguments.
        Validate them again then."""

        self.facts = facts

    @property
    def hold_id(self) -> str:
        """The name of its hold in stores of several processes, and in records."""
        return hold_id(self.number)

    @property
    def levels(self) -> Sequence[Level]:
        """What its accounts had used and held, and what it holds of them."""
        return self.found[3]

    def concluded(self) -> Decision:
        """Return the decision that came of it."""
        ruling, version = self.ruling, self.version
        if self.degraded == "open" or not self.lines.limits:
            return ruled(ruling, version, self.degraded)
        outcome = Outcome._make(self.found)
        return limited(
            *(ruling, self.lines, outcome, self.now, version),
            took=True,
            degraded=self.degraded,
        )

    @property
    def remaining(self) -> Mapping[str, int | str]:
        """What each limit leaves, by its label; after `settle` with what was charged.

        As the counters stood when the call was admitted: others may have called since.
        """
        if self.state == "settled" and self._due:
            levels = [
                (used, held, due)
                for (used, held, _), due in zip(self.levels, self._due, strict=True)
            ]
            outcome = Outcome._make(self.found)._replace(levels=levels)
            return left(self.lines, outcome, taken=True)
        return self.decision.remaining

    @property
    def decision(self) -> Decision:
        """Why the call may run, and what is left.

        Raises:
            InvalidInputError: The call has not been admitted.
        """
        if self.state in ("new", "refused"):
            raise InvalidInputError(
                "the call has not been admitted",
                hint="enter it first: `async with guard.admit(call) as permit`",
            )
        if self._decision is None:
            self._decision = self.concluded()
        return self._decision

    def __aenter__(self) -> Coroutine[Any, Any, Permit]:
        """Admit the call.

        Raises:
            GuardDeniedError: It is refused; the details are the decision.
            StoreUnavailableError: The store did not answer, and the mode is closed.
            AuditError: The decision could not be recorded.
        """
        if self.state != "new":
            raise InvalidInputError(
                "a permit is for one call; ask for another",
                hint="call `guard.admit(call)` again",
            )
        self.state = "refused"
        return self._guard.enter(self)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.state != "open":
            return
        self.state = "settled"
        name = None if kind is None else kind.__name__
        if isinstance(error, ToolcellError):
            name = error.kind
        cost = self.lines.held(self.levels)
        if error is None:
            status = "unsettled"
        else:
            status = "error" if isinstance(error, Exception) else "cancelled"
        try:
            if self.store is not None:
                await self._guard.settle(self, None)
        except BaseException as stopped:
            await self._record_beside(stopped, cost, status, name)
            if error is None or not isinstance(stopped, AuditError):
                raise
        else:
            await self._record_beside(error, cost, status, name)

    async def _record_beside(
        self, error: BaseException | None, *outcome: Any, settled: bool = False
    ) -> None:
        """Record what came of a call; an error or a cancel that ends it goes first."""
        try:
            try:
                self._guard.record(self, *outcome, settled=settled)
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
        """Charge what the call cost, and record what came of it.

        A unit that is not named is charged as it was held. More than was held is
        charged too: the account may then be over its limit, and admits nothing.

        Args:
            cost: Measured amounts by unit.
            status: How the call ended.
            error_kind: The kind of its error, if it had one.
            result: What it returned; only a hash of it is kept.

        Returns:
            False, and changes nothing, if the call was settled before.

        Raises:
            InvalidInputError: An amount cannot be used; the call is still open.
        """
        measured: dict[str, int] = {}
        for unit, value in cost.items():
            measured[unit] = parse_amount(unit, value)
        if self.state != "open":
            return False
        self.state = "settled"
        self._due = due = self.lines.due(self.found[3], measured)
        store = self.store
        if isinstance(store, MemoryStore):
            store.settle_soon(self.number, due)
        elif store is not None:
            try:
                await self._guard.settle(self, due)
            except BaseException as stopped:
                outcome = measured, status, error_kind, result
                await self._record_beside(stopped, *outcome, settled=True)
                raise
        try:
            self._guard.record(self, measured, status, error_kind, result, settled=True)
        except AuditBusyError as busy:
            await busy.wait()
        return True
