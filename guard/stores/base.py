"""Where counters live: what every store does.

A store knows two kinds of lines. A `RateHit` is a rate: one call now. A `Charge` is an
account with a limit: an amount is held, then settled. All lines of a request are
taken together or not at all. Times are whole microseconds by the store's own clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..values.clock import Clock

CORRECTION_MICROSECONDS = 86_400_000_000
"""Microseconds after its end in which a hold can still be corrected: a day."""


class RateHit(NamedTuple):
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


class Demand:
    """What calls of one kind need, all of it or nothing."""

    __slots__ = ("cached_counters", "charges", "hits", "hold_microseconds")

    def __init__(
        self,
        hits: Sequence[RateHit],
        charges: Sequence[Charge],
        hold_microseconds: int,
    ) -> None:
        self.hits = hits
        self.charges = charges
        self.hold_microseconds = hold_microseconds
        self.cached_counters: Any = None
        """The counters that a store has found for this demand, if it notes them.

        `MemoryStore` does, and a guarded tool call takes 13 % less for it."""


class Reservation(NamedTuple):
    """What one call needs, all of it or nothing."""

    hold_id: str
    hits: Sequence[RateHit]
    charges: Sequence[Charge]
    hold_microseconds: int
    """How long the hold may stay open."""


AccountLevel = tuple[int, int, int]
"""What an account has used and holds before a reservation, and what that would hold."""


class ReservationOutcome(NamedTuple):
    """What came of a reservation."""

    admitted: bool
    waits: Sequence[int]
    """For each hit how long until it would be admitted, 0 for now."""

    room: Sequence[int]
    """For each hit how many calls could come now."""

    levels: Sequence[AccountLevel]
    """For each charge its account."""


OutcomeTuple = tuple[bool, Sequence[int], Sequence[int], Sequence[AccountLevel]]
"""An outcome without its names, which cost more to give than it takes to find."""

NO_LIMITS = ReservationOutcome(admitted=True, waits=(), room=(), levels=())
"""What comes of a call that nothing limits."""


class Store(Protocol):
    """Counters that may be shared by threads, event loops and processes.

    Operations answer within a deadline of the store's own, or raise.
    """

    async def reserve(self, request: Reservation) -> ReservationOutcome:
        """Take all lines or none.

        Raises:
            StoreUnavailableError: The store cannot answer; nothing was taken, or what
                was taken ends with its hold.
        """

    async def peek(self, request: Reservation) -> ReservationOutcome:
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


HoldKey = str | int
"""The name of a hold; in the memory of one process its number, which costs less."""


@runtime_checkable
class SyncStore(Store, Protocol):
    """A store in the memory of this process, which never waits.

    The guard asks such a store without a task switch. What these two do is what
    `reserve` and `settle` do, in the same order for everybody who looks.
    """

    clock: Clock
    """What the times of the store are taken from."""

    def reserve_sync(
        self, hold_id: HoldKey, demand: Demand, now: int | None = None
    ) -> OutcomeTuple:
        """Do what `reserve` does.

        Args:
            hold_id: Names the hold.
            needs: What to take.
            now: What the store's clock has just said, in microseconds; None asks it.

        Raises:
            StoreUnavailableError: The store is full.
        """

    def settle_deferred(self, hold_id: HoldKey, actual: Sequence[int] | None) -> None:
        """Do what `settle` does, before anything else is looked at here."""


class RateCounter(Protocol):
    """What has been counted against a rate."""

    def room(self, hit: RateHit, now: int) -> tuple[int, int]:
        """Return how long a hit must wait, and how many calls could come now."""


class AccountCounter(Protocol):
    """What is used and held."""

    used: int
    held: int


def evaluate(
    hits: Sequence[tuple[RateCounter, RateHit]],
    charges: Sequence[tuple[AccountCounter, Charge]],
    now: int,
) -> OutcomeTuple:
    """Judge what a call needs: of each account `used + held + amount <= limit`."""
    admitted = True
    waits, free, levels = [], [], []
    for rate, hit in hits:
        wait, left = rate.room(hit, now)
        waits.append(wait)
        free.append(left)
        if wait and hit.enforced:
            admitted = False
    for account, charge in charges:
        used, held, amount = account.used, account.held, charge.amount
        if amount is None:
            amount = max(charge.limit - used - held, 1)
        levels.append((used, held, amount))
        if used + held + amount > charge.limit and charge.enforced:
            admitted = False
    return admitted, waits, free, levels


def room_in_bucket(
    full_at: int, now: int, interval: int, burst: int
) -> tuple[int, int]:
    """Return how long a call must wait, and how many may come now.

    Args:
        full_at: When the bucket is full again, 0 for a new one; all in microseconds.
        now: The time.
        interval: Time that one call takes up.
        burst: Calls that fit into an empty bucket.
    """
    if full_at <= now:
        return 0, burst
    behind = full_at - now
    wait = behind + interval - burst * interval
    return wait if wait > 0 else 0, burst - -(-behind // interval)
