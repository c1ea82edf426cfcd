"""The contract of stores, which hold the counters of limits.

A reservation has two kinds of lines. A `RateHit` counts calls now against a rate. A
`Charge` holds an amount of an account until it is settled. A store takes all lines of a
reservation or none. All times are whole microseconds by the store's own clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..values.amounts import Clock

CORRECTION_MICROSECONDS = 86_400_000_000
"""Microseconds in which an expired hold can still be settled: a day."""


class RateHit(NamedTuple):
    """Calls against a rate, all at one time."""

    key: str
    limit: int
    """Calls in a window, or the burst of a bucket."""

    window: int
    """Length of the window in microseconds."""

    interval: int = 0
    """Microseconds between calls of a bucket; 0 for a sliding window."""

    enforced: bool = True
    calls: int = 1
    """The calls that it counts as; more than `limit` are never admitted."""


class Charge(NamedTuple):
    """An amount against an account: a budget, or slots that are in use."""

    key: str
    amount: int | None
    """The amount to hold, in the unit of the account; None holds all that is left, and
    at least 1."""

    limit: int
    keep: int = 0
    """Microseconds that the account is remembered after its last use; 0 for ever."""

    refund: bool = False
    """True if a hold that expires unsettled costs nothing; else it costs the amount."""

    enforced: bool = True


class Demand:
    """The lines that calls of one kind reserve, all of them or none.

    One `Demand` serves many calls: a guard makes it for a tool, the facts of its calls
    and the periods of its budgets.

    Args:
        hits: The rates that a call counts against.
        charges: The amounts that it holds.
        hold_microseconds: Longest time that a hold may stay open. When it is reached
            the hold expires, and costs what its charges say.
    """

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
    """The lines that one call reserves, all of them or none."""

    hold_id: str
    """The name of the hold: its home, `|`, and a name that no other hold has."""

    hits: Sequence[RateHit]
    charges: Sequence[Charge]
    hold_microseconds: int
    """Longest time that the hold may stay open."""

    @property
    def home(self) -> str:
        """The agent with whose counters those of these lines are kept together.

        It is the topmost parent of the agent that calls. A line that agents of several
        homes share begins with `global|` or `tool|`.
        """
        return self.hold_id.rpartition("|")[0]


AccountLevel = tuple[int, int, int]
"""Amounts of an account: used and held before a reservation, and the one to hold."""


class ReservationOutcome(NamedTuple):
    """The answer of a store to a reservation."""

    admitted: bool
    waits: Sequence[int]
    """For each hit the microseconds until it would be admitted; 0 for now. For one of
    more calls than the limit any number above 0."""

    room: Sequence[int]
    """For each hit the number of calls that could come now."""

    levels: Sequence[AccountLevel]
    """For each charge the amounts of its account."""


OutcomeTuple = tuple[bool, Sequence[int], Sequence[int], Sequence[AccountLevel]]
"""The values of a `ReservationOutcome`, as a plain tuple: quicker to make."""

NO_LIMITS = ReservationOutcome(admitted=True, waits=(), room=(), levels=())
"""The answer for a call that no limit counts."""


class Store(Protocol):
    """The counters of limits, safe for any number of threads and event loops.

    Every store admits what its limits allow and no more: `used + held <= limit` holds
    for each enforced account, and no window has more calls than its limit, however
    many callers, and for shared stores processes, reserve at once. A hold that nobody
    settles expires. To settle twice changes nothing.

    Each operation ends within a deadline of the store's own, or raises
    `StoreUnavailableError`.
    """

    async def reserve(self, request: Reservation) -> ReservationOutcome:
        """Take all lines of a reservation or none.

        Raises:
            StoreUnavailableError: The store cannot answer. Nothing was taken, or the
                hold will expire.
        """

    async def peek(self, request: Reservation) -> ReservationOutcome:
        """Return the answer that `reserve` would give; take nothing."""

    async def settle(self, hold_id: str, actual: Sequence[int] | None) -> bool:
        """End a hold: charge these amounts; None charges what an unsettled call owes.

        Returns False, and changes nothing, if the hold was settled before.
        """

    async def reset(self, prefix: str) -> int:
        """Set the counters of keys with this prefix to zero; return their number.

        Holds stay.
        """

    async def aclose(self) -> None:
        """Close the files or connections of the store."""


HoldKey = str | int
"""The name of a hold, or in one process its number, which is quicker to make."""


@runtime_checkable
class SyncStore(Store, Protocol):
    """A store in the memory of this process, which never waits.

    The guard calls such a store as a plain function, without a task switch.
    `reserve_sync` and `settle_deferred` mean what `reserve` and `settle` mean, and all
    four take effect in the order in which they are called.
    """

    clock: Clock
    """Returns the time of the store, in seconds."""

    def reserve_sync(
        self, hold_id: HoldKey, demand: Demand, now: int | None = None
    ) -> OutcomeTuple:
        """Take all lines or none, as `reserve` does.

        Args:
            hold_id: The name of the hold.
            demand: The lines to take.
            now: The time by the store's clock, in microseconds; None reads the clock.

        Raises:
            StoreUnavailableError: The store is full.
        """

    def settle_deferred(self, hold_id: HoldKey, actual: Sequence[int] | None) -> None:
        """Settle as `settle` does, at the latest before the next operation."""


class RateCounter(Protocol):
    """The calls that were counted against a rate."""

    def room(self, hit: RateHit, now: int) -> tuple[int, int]:
        """Return the microseconds to wait, and the calls that could come now."""


class AccountCounter(Protocol):
    """The used and held amounts of an account."""

    used: int
    held: int


def evaluate(
    hits: Sequence[tuple[RateCounter, RateHit]],
    charges: Sequence[tuple[AccountCounter, Charge]],
    now: int,
) -> OutcomeTuple:
    """Judge the lines of a call: for each account `used + held + amount <= limit`."""
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
    full_at: int, now: int, interval: int, burst: int, calls: int = 1
) -> tuple[int, int]:
    """Return the wait of calls in microseconds, and how many could come now.

    Args:
        full_at: The time at which the bucket is full again; 0 for a new bucket.
        now: The time, in microseconds.
        interval: Microseconds that one call takes up.
        burst: Calls that a full bucket admits at once.
        calls: The calls that would come.
    """
    behind = full_at - now
    if behind <= 0:
        if calls <= burst:
            return 0, burst
        behind = 0
    wait = behind + (calls - burst) * interval
    return wait if wait > 0 else 0, burst - -(-behind // interval)
