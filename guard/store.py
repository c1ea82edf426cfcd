"""Where counters live: what every store does.

A store knows two kinds of lines. A `Hit` is a rate: one call now. A `Charge` is an
account with a limit: an amount is held, then settled. All lines of a request are
taken together or not at all. Times are whole microseconds by the store's own clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

LATE = 86_400_000_000
"""Microseconds after its end in which a hold can still be corrected: a day."""


class Hit(NamedTuple):
    """One call against a rate."""

    key: str
    limit: int
    """Calls in a window, or the burst of a bucket."""

    window: int
    interval: int = 0
    """Time between calls of a bucket; 0 for a sliding window."""

    enforced: bool = True


class Charge(NamedTuple):
    """An amount against an account: a budget, or slots that are in use."""

    key: str
    amount: int | None
    """None holds all that is left, and at least 1."""

    limit: int
    keep: int = 0
    """How long after its last use the account is remembered; 0 for ever."""

    refund: bool = False
    """Whether a hold that ends unsettled costs nothing, instead of all it held."""

    enforced: bool = True


class Reservation(NamedTuple):
    """What one call needs, all of it or nothing."""

    hold_id: str
    hits: Sequence[Hit]
    charges: Sequence[Charge]
    hold: int
    """How long the hold may stay open."""


class Level(NamedTuple):
    """An account before a reservation, and what the reservation would hold."""

    used: int
    held: int
    amount: int


class Outcome(NamedTuple):
    """What came of a reservation."""

    admitted: bool
    waits: Sequence[int]
    """For each hit how long until it would be admitted, 0 for now."""

    room: Sequence[int]
    """For each hit how many calls could come now."""

    levels: Sequence[Level]
    """For each charge its account."""


NO_LIMITS = Outcome(admitted=True, waits=(), room=(), levels=())
"""What comes of a call that nothing limits."""


class Store(Protocol):
    """Counters that may be shared by threads, event loops and processes."""

    instant: bool
    """Whether no operation ever waits. Others answer within a deadline of their own,
    or raise."""

    async def reserve(self, request: Reservation) -> Outcome:
        """Take all lines or none.

        Raises:
            StoreUnavailableError: The store cannot answer; nothing was taken, or what
                was taken ends with its hold.
        """

    async def peek(self, request: Reservation) -> Outcome:
        """Say what `reserve` would; take nothing."""

    async def settle(self, hold_id: str, actual: Sequence[int] | None) -> bool:
        """End a hold: charge these amounts, or what is due unsettled where None.

        Returns False, and changes nothing, where the hold was settled before.
        """

    async def reset(self, prefix: str) -> int:
        """Forget what was used and counted under keys with this prefix.

        Holds stay. Returns the number of counters.
        """

    async def aclose(self) -> None:
        """Let go of what the store has open."""


def fits(charge: Charge, level: Level) -> bool:
    """The one rule of accounts."""
    return level.used + level.held + level.amount <= charge.limit


def level_of(charge: Charge, used: int, held: int) -> Level:
    """Return the level of an account for a charge of it."""
    amount = charge.amount
    if amount is None:
        amount = max(charge.limit - used - held, 1)
    return Level(used, held, amount)
