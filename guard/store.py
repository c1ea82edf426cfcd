"""Where counters live: what every store does, and the one in memory.

A store knows two kinds of lines. A `Hit` is a rate: one call now. A `Charge` is an
account with a limit: an amount is held, then settled. All lines of a request are
taken together or not at all. Times are whole microseconds by the store's own clock.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from toolcell.core import StoreUnavailableError

from .clock import Clock, microseconds, steady_time
from .rates import MICROSECONDS, bucket_room

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


@dataclass(slots=True)
class _Account:
    used: int = 0
    held: int = 0
    forget_at: int = 0


@dataclass(slots=True)
class _Hold:
    charges: Sequence[Charge]
    held: list[int]
    expires: int
    charged: list[int] | None = None
    """What was charged when the hold ended by itself."""

    def due(self) -> list[int]:
        """Return what the call costs if it never says."""
        pairs = zip(self.charges, self.held, strict=True)
        return [0 if charge.refund else held for charge, held in pairs]


class MemoryStore:
    """Counters of this process, for any number of its threads and event loops.

    Nothing survives the process.

    Args:
        clock: The time in seconds. When it runs back the store's time stands still.
        max_keys: Counters kept at once (1,000,000). When it is reached a call that
            needs a new one is refused as `store_unavailable`; none that still counts
            is forgotten.
    """

    instant = True

    def __init__(
        self, *, clock: Clock = steady_time, max_keys: int = 1_000_000
    ) -> None:
        self._clock = clock
        self._max_keys = max_keys
        self._sweep_at = min(1024, max_keys)
        self._now = 0
        self._swept = 0
        self._lock = threading.Lock()
        self._accounts: dict[str, _Account] = {}
        self._windows: dict[str, tuple[int, deque[int]]] = {}
        self._buckets: dict[str, int] = {}
        self._holds: dict[str, _Hold] = {}
        self._ends: list[tuple[int, str]] = []

    async def reserve(self, request: Reservation) -> Outcome:
        with self._lock:
            now = self._tick()
            outcome = self._look(request, now)
            if outcome.admitted:
                self._take(request, outcome, now)
            return outcome

    async def peek(self, request: Reservation) -> Outcome:
        with self._lock:
            return self._look(request, self._tick())

    async def settle(self, hold_id: str, actual: Sequence[int] | None) -> bool:
        with self._lock:
            now = self._tick()
            hold = self._holds.get(hold_id)
            if hold is None or (hold.charged is not None and actual is None):
                return False
            del self._holds[hold_id]
            due = hold.due() if actual is None else actual
            if hold.charged is None:
                self._end(hold, due, hold.held, now)
            else:
                late = [new - old for new, old in zip(due, hold.charged, strict=True)]
                self._end(hold, late, [0] * len(late), now)
            return True

    async def reset(self, prefix: str) -> int:
        with self._lock:
            found = 0
            for counters in (self._windows, self._buckets):
                for key in [key for key in counters if key.startswith(prefix)]:
                    del counters[key]
                    found += 1
            for key, account in self._accounts.items():
                if key.startswith(prefix):
                    account.used = 0
                    found += 1
            return found

    async def aclose(self) -> None:
        """Do nothing; there is nothing open."""

    def _tick(self) -> int:
        now = microseconds(self._clock())
        if now > self._now:
            self._now = now
            if self._ends and self._ends[0][0] <= now:
                self._end_holds(now)
        return self._now

    def _end_holds(self, now: int) -> None:
        while self._ends and self._ends[0][0] <= now:
            _, hold_id = heapq.heappop(self._ends)
            hold = self._holds.get(hold_id)
            if hold is None:
                continue
            if hold.charged is not None:
                del self._holds[hold_id]
                continue
            hold.charged = hold.due()
            self._end(hold, hold.charged, hold.held, now)
            heapq.heappush(self._ends, (hold.expires + LATE, hold_id))

    def _end(
        self, hold: _Hold, due: Sequence[int], freed: Sequence[int], now: int
    ) -> None:
        accounts = self._accounts
        for charge, amount, free in zip(hold.charges, due, freed, strict=True):
            account = accounts.get(charge.key)
            if account is None:
                account = accounts[charge.key] = _Account()
            account.held -= free
            account.used = max(account.used + amount, 0)
            account.forget_at = now + charge.keep if charge.keep else 0

    def _look(self, request: Reservation, now: int) -> Outcome:
        waits, room, levels = [], [], []
        admitted = True
        for hit in request.hits:
            wait, free = self._room(hit, now)
            waits.append(wait)
            room.append(free)
            if wait and hit.enforced:
                admitted = False
        accounts = self._accounts
        for charge in request.charges:
            account = accounts.get(charge.key)
            used, held = (account.used, account.held) if account else (0, 0)
            amount, limit = charge.amount, charge.limit
            if amount is None:
                amount = max(limit - used - held, 1)
            levels.append(Level(used, held, amount))
            if used + held + amount > limit and charge.enforced:
                admitted = False
        return Outcome(admitted, waits, room, levels)

    def _room(self, hit: Hit, now: int) -> tuple[int, int]:
        if hit.interval:
            full_at = self._buckets.get(hit.key, 0)
            return bucket_room(full_at, now, hit.interval, hit.limit)
        found = self._windows.get(hit.key)
        if found is None:
            return 0, hit.limit
        times = found[1]
        while times and times[0] <= now - hit.window:
            times.popleft()
        free = hit.limit - len(times)
        return (0, free) if free > 0 else (times[-free] + hit.window - now, 0)

    def _take(self, request: Reservation, outcome: Outcome, now: int) -> None:
        if self._size() + len(request.hits) + len(request.charges) > self._sweep_at:
            self._make_room(now, request)
        for hit, wait in zip(request.hits, outcome.waits, strict=True):
            if wait:
                continue
            if hit.interval:
                full_at = max(self._buckets.get(hit.key, 0), now)
                self._buckets[hit.key] = full_at + hit.interval
            else:
                found = self._windows.get(hit.key)
                if found is None:
                    found = self._windows[hit.key] = (hit.window, deque())
                found[1].append(now)
        accounts = self._accounts
        amounts = []
        for charge, level in zip(request.charges, outcome.levels, strict=True):
            account = accounts.get(charge.key)
            if account is None:
                account = accounts[charge.key] = _Account()
            account.held += level.amount
            account.forget_at = now + charge.keep if charge.keep else 0
            amounts.append(level.amount)
        if amounts:
            expires = now + request.hold
            self._holds[request.hold_id] = _Hold(request.charges, amounts, expires)
            heapq.heappush(self._ends, (expires, request.hold_id))
            if len(self._ends) > 2 * len(self._holds) + 1024:
                self._ends = [each for each in self._ends if each[1] in self._holds]
                heapq.heapify(self._ends)

    def _size(self) -> int:
        return len(self._accounts) + len(self._windows) + len(self._buckets)

    def _make_room(self, now: int, request: Reservation) -> None:
        """Forget what no longer counts.

        Raises:
            StoreUnavailableError: There would still be too many counters.
        """
        if self._size() < self._max_keys or now - self._swept >= MICROSECONDS:
            self._sweep(now)
        size = self._size()
        counters = (self._accounts, self._windows, self._buckets)
        keys = [hit.key for hit in request.hits]
        keys += [charge.key for charge in request.charges]
        new = sum(not any(key in each for each in counters) for key in keys)
        if size + new > self._max_keys:
            raise StoreUnavailableError(
                f"the store is full: {size} counters are in use",
                hint="raise MemoryStore(max_keys=...)",
            )
        self._sweep_at = min(2 * size + 1024, self._max_keys)

    def _sweep(self, now: int) -> None:
        self._swept = now
        for key in [k for k, a in self._accounts.items() if _is_over(a, now)]:
            del self._accounts[key]
        for key, (window, times) in list(self._windows.items()):
            if not times or times[-1] <= now - window:
                del self._windows[key]
        for key in [key for key, full_at in self._buckets.items() if full_at <= now]:
            del self._buckets[key]


def _is_over(account: _Account, now: int) -> bool:
    return not account.held and 0 < account.forget_at <= now
