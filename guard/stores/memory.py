"""Counters in the memory of one process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from toolcell.core import StoreUnavailableError

from ..values.amounts import MICROSECONDS, Clock, steady_time
from .base import (
    CORRECTION_MICROSECONDS,
    AccountLevel,
    Charge,
    Demand,
    HoldKey,
    OutcomeTuple,
    RateHit,
    Reservation,
    ReservationOutcome,
    evaluate,
    room_in_bucket,
)

_NEVER = 2**62
_LOOK_KEYS = 1_000
"""Counters that one operation sweeps. When it is reached the next one goes on."""


@dataclass(slots=True)
class _Window:
    length: int
    times: deque[int] = field(default_factory=deque)

    def room(self, hit: RateHit, now: int) -> tuple[int, int]:
        times, edge = self.times, now - hit.window
        while times and times[0] <= edge:
            times.popleft()
        free, calls = hit.limit - len(times), hit.calls
        if calls <= free:
            return 0, free
        if calls > hit.limit:
            return hit.window, max(free, 0)
        return times[calls - free - 1] - edge, max(free, 0)

    def count(self, hit: RateHit, now: int) -> None:
        if hit.calls == 1:
            self.times.append(now)
        else:
            self.times.extend([now] * hit.calls)

    def is_over(self, now: int) -> bool:
        return not self.times or self.times[-1] <= now - self.length


@dataclass(slots=True)
class _Bucket:
    full_at: int = 0

    def room(self, hit: RateHit, now: int) -> tuple[int, int]:
        _, limit, _, interval, _, calls = hit
        return room_in_bucket(self.full_at, now, interval, limit, calls)

    def count(self, hit: RateHit, now: int) -> None:
        starts = self.full_at if self.full_at > now else now
        self.full_at = starts + hit.interval * hit.calls

    def is_over(self, now: int) -> bool:
        return self.full_at <= now


@dataclass(slots=True, eq=False)
class _MemoryAccount:
    used: int = 0
    held: int = 0
    forget_at: int = 0
    """The time at which it may be forgotten; 0: not yet."""


_Hits = Sequence[tuple[_Window | _Bucket, RateHit]]
_Charges = Sequence[tuple[_MemoryAccount, Charge]]


class _CachedCounters(NamedTuple):
    """The counters of a demand, valid until a counter of the store is forgotten."""

    generation: object
    hits: _Hits
    charges: _Charges


_HeldCharges = tuple[int, _Charges, Sequence[AccountLevel], Sequence[int] | None]
"""The end of a hold, its charges and their amounts, and the charge if it expired."""


class MemoryStore:
    """Counters of this process, for any number of its threads and event loops.

    Nothing survives the process.

    Args:
        clock: The time in seconds. When it runs back the store's time stands still.
        max_keys: Most counters at once; default 1,000,000. When it is reached a call
            that needs a new one is refused as `store_unavailable`; none that still
            counts is forgotten.
    """

    def __init__(
        self, *, clock: Clock = steady_time, max_keys: int = 1_000_000
    ) -> None:
        self.clock = clock
        self._max_keys = max_keys
        self._sweep_at = min(1024, max_keys)
        self._swept = 0
        self._sweeping: list[str] = []
        self._now = 0
        self._next_end = _NEVER
        # A heap of ends, and the holds in it: those of the last time it was used.
        self._ends: list[tuple[int, str, HoldKey]] = []
        self._noted: dict[HoldKey, _HeldCharges] = {}
        self._lock = threading.Lock()
        self._rates: dict[str, _Window | _Bucket] = {}
        self._accounts: dict[str, _MemoryAccount] = {}
        self._holds: dict[HoldKey, _HeldCharges] = {}
        # Settlements that are applied before the next operation.
        self._settled: deque[tuple[HoldKey, Sequence[int] | None]] = deque()
        # Replaced whenever a counter is forgotten.
        self._generation = object()

    async def reserve(self, request: Reservation) -> ReservationOutcome:
        hold_id, hits, charges, hold = request
        return ReservationOutcome._make(
            self.reserve_sync(hold_id, Demand(hits, charges, hold))
        )

    async def peek(self, request: Reservation) -> ReservationOutcome:
        _, hits, charges, hold = request
        with self._lock:
            now = self._tick()
            counters = self._find_counters(Demand(hits, charges, hold))
            return ReservationOutcome._make(
                evaluate(counters.hits, counters.charges, now)
            )

    async def settle(self, hold_id: str, actual: Sequence[int] | None) -> bool:
        with self._lock:
            return self._settle(hold_id, actual, self._tick())

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
        with self._lock:
            now = self._tick(now)
            counters = demand.cached_counters
            known = counters is not None and counters[0] is self._generation
            if not known:
                counters = self._find_counters(demand)
            _, hits, charges = counters
            found = admitted, waits, _, levels = evaluate(hits, charges, now)
            if admitted:
                if not known:
                    self._keep(demand, counters, now)
                for (rate, hit), wait in zip(hits, waits):  # noqa: B905
                    if not wait:
                        rate.count(hit, now)
                if charges:
                    for (account, _), level in zip(charges, levels):  # noqa: B905
                        account.held += level[2]
                        account.forget_at = 0
                    expires = now + demand.hold_microseconds
                    self._holds[hold_id] = (expires, charges, levels, None)
                    if expires < self._next_end:
                        self._next_end = expires
            return found

    def settle_deferred(self, hold_id: HoldKey, actual: Sequence[int] | None) -> None:
        """Settle as `settle` does, at the latest before the next operation."""
        self._settled.append((hold_id, actual))

    async def reset(self, prefix: str) -> int:
        with self._lock:
            self._tick()
            rates = [key for key in self._rates if key.startswith(prefix)]
            accounts = [key for key in self._accounts if key.startswith(prefix)]
            for key in rates:
                del self._rates[key]
            for key in accounts:
                self._accounts[key].used = 0
            self._generation = object()
            return len(rates) + len(accounts)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""

    def _tick(self, now: int | None = None) -> int:
        """Apply settlements and ends of holds that are due; return the time."""
        if now is None:
            now = round(self.clock() * MICROSECONDS)
        if now < self._now:
            now = self._now
        self._now = now
        while self._settled:
            hold_id, actual = self._settled.popleft()
            self._settle(hold_id, actual, now)
        if self._next_end <= now:
            self._end_holds(now)
        return now

    def _settle(self, hold_id: HoldKey, actual: Sequence[int] | None, now: int) -> bool:
        hold = self._holds.get(hold_id)
        if hold is None:
            return False
        _, charges, levels, charged = hold
        if charged is not None and actual is None:
            return False
        del self._holds[hold_id]
        due = _unsettled(charges, levels) if actual is None else actual
        if charged is None:
            _end(charges, levels, due, now)
        else:
            _correct(charges, charged, due)
        return True

    def _end_holds(self, now: int) -> None:
        self._note_new_holds()
        ends = self._ends
        while ends and ends[0][0] <= now:
            expires, _, hold_id = heappop(ends)
            hold = self._noted.get(hold_id)
            if hold is None or hold[0] != expires:
                continue
            del self._noted[hold_id]
            if self._holds.get(hold_id) is not hold:
                continue
            _, charges, levels, charged = hold
            if charged is None:
                due = _unsettled(charges, levels)
                _end(charges, levels, due, now)
                late = expires + CORRECTION_MICROSECONDS
                for account, charge in charges:
                    if charge.keep:
                        account.forget_at = max(account.forget_at, late)
                # In place, so that new holds stay the last ones.
                self._holds[hold_id] = late_hold = (late, charges, levels, due)
                self._note(hold_id, late_hold)
            else:
                del self._holds[hold_id]
        self._next_end = ends[0][0] if ends else _NEVER

    def _note_new_holds(self) -> None:
        if len(self._ends) > 2 * len(self._holds) + 1024:
            self._ends.clear()
            self._noted.clear()
        for hold_id in reversed(self._holds):
            hold = self._holds[hold_id]
            if self._noted.get(hold_id) is hold:
                return
            self._note(hold_id, hold)

    def _note(self, hold_id: HoldKey, hold: _HeldCharges) -> None:
        self._noted[hold_id] = hold
        heappush(self._ends, (hold[0], repr(hold_id), hold_id))

    def _find_counters(self, demand: Demand) -> _CachedCounters:
        """Return the counters of a demand; a missing one is made, not stored."""
        rates, accounts = self._rates, self._accounts
        hits = [(rates.get(hit.key) or _new_rate(hit), hit) for hit in demand.hits]
        charges = [
            (accounts.get(charge.key) or _MemoryAccount(), charge)
            for charge in demand.charges
        ]
        return _CachedCounters(self._generation, hits, charges)

    def _keep(self, demand: Demand, counters: _CachedCounters, now: int) -> None:
        """Store the counters of an admitted call.

        Raises:
            StoreUnavailableError: There would be too many counters.
        """
        if self._size() + self._new(demand) > self._sweep_at:
            self._make_room(demand, now)
        self._rates.update((hit.key, rate) for rate, hit in counters.hits)
        self._accounts.update((each.key, account) for account, each in counters.charges)
        demand.cached_counters = counters._replace(generation=self._generation)

    def _size(self) -> int:
        return len(self._accounts) + len(self._rates)

    def _new(self, demand: Demand) -> int:
        """Return how many counters a demand would add."""
        missing = [hit for hit in demand.hits if hit.key not in self._rates]
        return len(missing) + sum(
            charge.key not in self._accounts for charge in demand.charges
        )

    def _make_room(self, demand: Demand, now: int) -> None:
        """Forget counters that no longer count.

        Raises:
            StoreUnavailableError: There would still be too many counters.
        """
        if not self._sweeping and (
            self._size() < self._max_keys or now - self._swept >= MICROSECONDS
        ):
            self._swept = now
            self._sweeping = [*self._accounts, *self._rates]
        self._sweep(now)
        size = self._size()
        if size + self._new(demand) > self._max_keys:
            raise StoreUnavailableError(
                f"the store is full: {size} counters are in use",
                hint="raise MemoryStore(max_keys=...)",
            )
        if not self._sweeping:
            self._sweep_at = min(2 * size + 1024, self._max_keys)

    def _sweep(self, now: int) -> None:
        """Forget those of the next counters that no longer count."""
        before = self._size()
        looked_at = self._sweeping[-_LOOK_KEYS:]
        del self._sweeping[-_LOOK_KEYS:]
        for key in looked_at:
            account, rate = self._accounts.get(key), self._rates.get(key)
            if account and 0 < account.forget_at <= now and not account.held:
                del self._accounts[key]
            if rate and rate.is_over(now):
                del self._rates[key]
        if self._size() < before:
            self._generation = object()


def _unsettled(charges: _Charges, levels: Sequence[AccountLevel]) -> list[int]:
    """Return the charges of a call that is never settled."""
    held = zip(charges, levels, strict=True)
    return [0 if charge.refund else amount for (_, charge), (_, _, amount) in held]


def _end(
    charges: _Charges, levels: Sequence[AccountLevel], due: Sequence[int], now: int
) -> None:
    for (account, charge), level, amount in zip(charges, levels, due):  # noqa: B905
        account.held -= level[2]
        account.used += amount
        if charge.keep:
            account.forget_at = now + charge.keep


def _correct(charges: _Charges, charged: Sequence[int], due: Sequence[int]) -> None:
    for (account, _), old, new in zip(charges, charged, due, strict=True):
        account.used = max(account.used + new - old, 0)


def _new_rate(hit: RateHit) -> _Window | _Bucket:
    return _Bucket() if hit.interval else _Window(hit.window)
