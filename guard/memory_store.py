"""Counters in the memory of one process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from toolcell.core import StoreUnavailableError

from .clock import Clock, steady_time
from .rates import MICROSECONDS, bucket_room
from .store import LATE, Charge, Hit, Level, Needs, Outcome, Reservation, look

_NEVER = 2**62


@dataclass(slots=True)
class _Window:
    length: int
    times: deque[int] = field(default_factory=deque)

    def room(self, hit: Hit, now: int) -> tuple[int, int]:
        times, edge = self.times, now - hit.window
        while times and times[0] <= edge:
            times.popleft()
        free = hit.limit - len(times)
        return (0, free) if free > 0 else (times[-free] - edge, 0)

    def count(self, hit: Hit, now: int) -> None:
        self.times.append(now)

    def is_over(self, now: int) -> bool:
        return not self.times or self.times[-1] <= now - self.length


@dataclass(slots=True)
class _Bucket:
    full_at: int = 0

    def room(self, hit: Hit, now: int) -> tuple[int, int]:
        return bucket_room(self.full_at, now, hit.interval, hit.limit)

    def count(self, hit: Hit, now: int) -> None:
        starts = self.full_at if self.full_at > now else now
        self.full_at = starts + hit.interval

    def is_over(self, now: int) -> bool:
        return self.full_at <= now


@dataclass(slots=True, eq=False)
class _Account:
    used: int = 0
    held: int = 0
    forget_at: int = 0


_Hits = Sequence[tuple[_Window | _Bucket, Hit]]
_Charges = Sequence[tuple[_Account, Charge]]


class _Found(NamedTuple):
    """The counters of a call's lines, as long as none is forgotten."""

    era: object
    hits: _Hits
    charges: _Charges


@dataclass(slots=True)
class _Hold:
    charges: _Charges
    levels: Sequence[Level]
    expires: int
    charged: Sequence[int] | None = None
    """What was charged when the hold ended by itself."""

    def due(self) -> Sequence[int]:
        """Return what the call costs if it never says."""
        return [
            0 if charge.refund else amount
            for (_, charge), (_, _, amount) in zip(
                self.charges, self.levels, strict=True
            )
        ]


class MemoryStore:
    """Counters of this process, for any number of its threads and event loops.

    Nothing survives the process.

    Args:
        clock: The time in seconds. When it runs back the store's time stands still.
        max_keys: Counters kept at once (1,000,000). When it is reached a call that
            needs a new one is refused as `store_unavailable`; none that still counts
            is forgotten.
    """

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
        self._rates: dict[str, _Window | _Bucket] = {}
        self._accounts: dict[str, _Account] = {}
        self._holds: dict[str, _Hold] = {}
        # Another one whenever a counter is forgotten.
        self._era = object()

    async def reserve(self, request: Reservation) -> Outcome:
        hold_id, hits, charges, hold = request
        return self.reserve_now(hold_id, Needs(hits, charges, hold))

    async def peek(self, request: Reservation) -> Outcome:
        _, hits, charges, hold = request
        with self._lock:
            now = self._tick()
            found = self._find(Needs(hits, charges, hold))
            return look(found.hits, found.charges, now)

    async def settle(self, hold_id: str, actual: Sequence[int] | None) -> bool:
        return self.settle_now(hold_id, actual)

    def reserve_now(self, hold_id: str, needs: Needs) -> Outcome:
        """Do what `reserve` does, which never waits here."""
        with self._lock:
            now = self._tick()
            found = needs.bound
            known = found is not None and found[0] is self._era
            if not known:
                found = self._find(needs)
            _, hits, charges = found
            outcome = look(hits, charges, now)
            if outcome.admitted:
                if not known:
                    self._keep(needs, found, now)
                for (rate, hit), wait in zip(hits, outcome.waits):  # noqa: B905
                    if not wait:
                        rate.count(hit, now)
                if charges:
                    levels = outcome.levels
                    for (account, _), level in zip(charges, levels):  # noqa: B905
                        account.held += level[2]
                    self._hold(hold_id, _Hold(charges, levels, now + needs.hold))
            return outcome

    def settle_now(self, hold_id: str, actual: Sequence[int] | None) -> bool:
        """Do what `settle` does, which never waits here."""
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
            rates = [key for key in self._rates if key.startswith(prefix)]
            accounts = [key for key in self._accounts if key.startswith(prefix)]
            for key in rates:
                del self._rates[key]
            for key in accounts:
                self._accounts[key].used = 0
            self._era = object()
            return len(rates) + len(accounts)

    async def aclose(self) -> None:
        """Do nothing; there is nothing open."""

    def _tick(self) -> int:
        now = round(self._clock() * MICROSECONDS)
        if now <= self._now:
            return self._now
        self._now = now
        if self._next_end <= now:
            self._end_holds(now)
        return now

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
        for (account, charge), level, amount in zip(hold.charges, hold.levels, due):  # noqa: B905
            account.held -= level[2]
            account.used += amount
            if charge.keep:
                account.forget_at = now + charge.keep

    def _correct(self, hold: _Hold, charged: Sequence[int], due: Sequence[int]) -> None:
        for (account, _), old, new in zip(hold.charges, charged, due, strict=True):
            account.used = max(account.used + new - old, 0)

    def _find(self, needs: Needs) -> _Found:
        """Return the counters of some lines; a missing one is new, and not kept yet."""
        rates, accounts = self._rates, self._accounts
        hits = [(rates.get(hit.key) or _new_rate(hit), hit) for hit in needs.hits]
        charges = [
            (accounts.get(charge.key) or _Account(), charge) for charge in needs.charges
        ]
        return _Found(self._era, hits, charges)

    def _keep(self, needs: Needs, found: _Found, now: int) -> None:
        """Remember the counters of a call that is admitted.

        Raises:
            StoreUnavailableError: There would be too many.
        """
        if self._size() + self._new(needs) > self._sweep_at:
            self._make_room(needs, now)
        self._rates.update((hit.key, rate) for rate, hit in found.hits)
        self._accounts.update((each.key, account) for account, each in found.charges)
        needs.bound = found._replace(era=self._era)

    def _hold(self, hold_id: str, hold: _Hold) -> None:
        self._holds[hold_id] = hold
        if hold.expires < self._next_end:
            self._next_end = hold.expires

    def _size(self) -> int:
        return len(self._accounts) + len(self._rates)

    def _new(self, needs: Needs) -> int:
        """Return how many counters some lines would add."""
        missing = [hit for hit in needs.hits if hit.key not in self._rates]
        return len(missing) + sum(
            charge.key not in self._accounts for charge in needs.charges
        )

    def _make_room(self, needs: Needs, now: int) -> None:
        """Forget what no longer counts.

        Raises:
            StoreUnavailableError: There would still be too many counters.
        """
        if self._size() < self._max_keys or now - self._swept >= MICROSECONDS:
            self._sweep(now)
        size = self._size()
        if size + self._new(needs) > self._max_keys:
            raise StoreUnavailableError(
                f"the store is full: {size} counters are in use",
                hint="raise MemoryStore(max_keys=...)",
            )
        self._sweep_at = min(2 * size + 1024, self._max_keys)

    def _sweep(self, now: int) -> None:
        self._swept = now
        self._era = object()
        # Those of holds can still be settled, or corrected.
        held = {
            id(account) for hold in self._holds.values() for account, _ in hold.charges
        }
        for key, account in list(self._accounts.items()):
            if 0 < account.forget_at <= now and id(account) not in held:
                del self._accounts[key]
        for key, rate in list(self._rates.items()):
            if rate.is_over(now):
                del self._rates[key]


def _new_rate(hit: Hit) -> _Window | _Bucket:
    return _Bucket() if hit.interval else _Window(hit.window)
