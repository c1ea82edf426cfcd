"""Counters in the memory of one process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from toolcell.core import StoreUnavailableError

from .clock import Clock, microseconds, steady_time
from .rates import MICROSECONDS, bucket_room
from .store import LATE, Charge, Hit, Level, Outcome, Reservation

_NEVER = 2**62


@dataclass(slots=True)
class _Account:
    used: int = 0
    held: int = 0
    holds: int = 0
    forget_at: int = 0


@dataclass(slots=True)
class _Hold:
    charges: Sequence[Charge]
    accounts: list[_Account]
    levels: Sequence[Level]
    expires: int
    charged: list[int] | None = None
    """What was charged when the hold ended by itself."""

    def due(self) -> list[int]:
        """Return what the call costs if it never says."""
        pairs = zip(self.charges, self.levels, strict=True)
        return [0 if charge.refund else level.amount for charge, level in pairs]


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
        self._swept = 0
        self._now = 0
        self._next_end = _NEVER
        self._lock = threading.Lock()
        self._accounts: dict[str, _Account] = {}
        self._windows: dict[str, tuple[int, deque[int]]] = {}
        self._buckets: dict[str, int] = {}
        self._holds: dict[str, _Hold] = {}

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
                self._end(hold, due, now)
            else:
                self._correct(hold, hold.charged, due)
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
            if self._next_end <= now:
                self._end_holds(now)
        return self._now

    def _end_holds(self, now: int) -> None:
        for hold_id in [key for key, h in self._holds.items() if h.expires <= now]:
            hold = self._holds[hold_id]
            if hold.charged is not None:
                del self._holds[hold_id]
                continue
            hold.charged = hold.due()
            self._end(hold, hold.charged, now)
            hold.expires += LATE
        ends = (hold.expires for hold in self._holds.values())
        self._next_end = min(ends, default=_NEVER)

    def _end(self, hold: _Hold, due: Sequence[int], now: int) -> None:
        for charge, account, level, amount in zip(
            hold.charges, hold.accounts, hold.levels, due, strict=True
        ):
            account.held -= level.amount
            account.used += amount
            account.holds -= 1
            account.forget_at = now + charge.keep if charge.keep else 0

    def _correct(self, hold: _Hold, charged: list[int], due: Sequence[int]) -> None:
        for account, old, new in zip(hold.accounts, charged, due, strict=True):
            account.used = max(account.used + new - old, 0)

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
        for key, amount, limit, _, _, enforced in request.charges:
            account = accounts.get(key)
            used, held = (account.used, account.held) if account else (0, 0)
            if amount is None:
                amount = max(limit - used - held, 1)
            levels.append(Level(used, held, amount))
            if used + held + amount > limit and enforced:
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
        _, hits, charges, length = request
        if self._size() + len(hits) + len(charges) > self._sweep_at:
            self._make_room(now, request)
        for hit, wait in zip(hits, outcome.waits, strict=True):
            if not wait:
                self._count(hit, now)
        if not charges:
            return
        accounts, held = self._accounts, []
        for charge, level in zip(charges, outcome.levels, strict=True):
            account = accounts.get(charge.key)
            if account is None:
                account = accounts[charge.key] = _Account()
            account.held += level.amount
            account.holds += 1
            held.append(account)
        expires = now + length
        self._holds[request.hold_id] = _Hold(charges, held, outcome.levels, expires)
        if expires < self._next_end:
            self._next_end = expires

    def _count(self, hit: Hit, now: int) -> None:
        if hit.interval:
            full_at = max(self._buckets.get(hit.key, 0), now)
            self._buckets[hit.key] = full_at + hit.interval
            return
        found = self._windows.get(hit.key)
        if found is None:
            found = self._windows[hit.key] = (hit.window, deque())
        found[1].append(now)

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
    return not account.holds and 0 < account.forget_at <= now
