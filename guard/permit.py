"""The leave for one call, from its admission to its settlement."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from toolcell.core import (
    AuditError,
    InvalidInputError,
    ToolCall,
    ToolcellError,
    ToolStatus,
)

from .answers import accounts, limited, ruled
from .decision import Decision
from .facts import CallFacts
from .ledger import Taken
from .quotas import Limit, Lines
from .rules import Ruling
from .store import Level, Store
from .units import Amount, parse_amount

if TYPE_CHECKING:
    from .guard import ActionGuard

_log = logging.getLogger("toolcell.guard")
_NOTHING: Mapping[str, Amount] = {}


class Granted(NamedTuple):
    """What an admission rests on; made into a decision when somebody looks."""

    ruling: Ruling
    lines: Lines
    taken: Taken
    version: str

    @property
    def store(self) -> Store | None:
        """Where the hold is."""
        return self.taken.store

    @property
    def levels(self) -> Sequence[Level]:
        """What is held, one for each charge."""
        return self.taken.outcome.levels

    def accounts(self) -> list[tuple[Limit, Level]]:
        """Return what is held, with what it stands for."""
        return accounts(self.lines, self.taken.outcome) if self.store else []

    def decision(self) -> Decision:
        """Return the decision."""
        ruling, lines, (outcome, _, degraded), version = self
        if degraded == "open" or not lines.limits:
            return ruled(ruling, version, degraded)
        return limited(ruling, lines, outcome, version, took=True, degraded=degraded)


class Permit:
    """The leave for one call: `async with guard.admit(call, facts) as permit`.

    Entering raises if the call is refused. A call that is left without `settle` is
    charged all that it held, where its budget does not say otherwise.
    """

    __slots__ = (
        *("_decision", "_guard", "_state", "call", "facts"),
        *("granted", "hold_id", "started", "watched"),
    )

    def __init__(self, guard: ActionGuard, call: ToolCall, facts: CallFacts) -> None:
        self._guard = guard
        self.call = call
        """The call to run; not the one asked for, if a person changed its arguments.
        Validate them again then."""

        self.facts = facts
        self._state: Literal["new", "open", "settled"] = "new"
        self._decision: Decision | None = None
        self.granted: Granted | None = None
        self.hold_id = ""
        self.started = 0.0
        self.watched = False

    @property
    def decision(self) -> Decision:
        """Why the call may run, and what is left.

        Raises:
            InvalidInputError: The call has not been admitted.
        """
        if self.granted is None:
            raise InvalidInputError("the call has not been admitted")
        if self._decision is None:
            self._decision = self.granted.decision()
        return self._decision

    async def __aenter__(self) -> Self:
        """Admit the call.

        Raises:
            GuardDeniedError: It is refused; the details are the decision.
            StoreUnavailableError: The store did not answer, and the mode is closed.
            AuditError: The decision could not be recorded.
        """
        if self._state != "new":
            raise InvalidInputError("a permit is for one call; ask for another")
        self._state = "settled"
        refusal = await self._guard.enter(self)
        if refusal is not None:
            raise refusal.to_error()
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
        cost = {limit.unit: level.amount for limit, level in self._accounts()}
        if error is None:
            status = "unsettled"
        else:
            status = "error" if isinstance(error, Exception) else "cancelled"
        try:
            await self._guard.leave(self, None, cost, status, name)
        except AuditError as unrecorded:
            if error is None:
                raise
            # The error that ends the call, or its cancellation, must not be lost.
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
        measured = {unit: parse_amount(unit, value) for unit, value in cost.items()}
        if self._state != "open":
            return False
        self._state = "settled"
        actual = [_due(limit, level, measured) for limit, level in self._accounts()]
        await self._guard.leave(self, actual, measured, status, error_kind, result)
        return True

    def _accounts(self) -> list[tuple[Limit, Level]]:
        return [] if self.granted is None else self.granted.accounts()


def _due(limit: Limit, level: Level, measured: Mapping[str, int]) -> int:
    if limit.unit == "slots":
        return 0
    if limit.unit == "calls":
        return 1
    return measured.get(limit.unit, level.amount)
