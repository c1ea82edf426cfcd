"""The guard's access to its store: outages, and what is settled after them."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeVar

import anyio

from toolcell.core import AuditError, PolicyError, StoreUnavailableError

from ..stores.base import (
    NO_LIMITS,
    Charge,
    OutcomeTuple,
    Reservation,
    ReservationOutcome,
    Store,
    SyncStore,
)
from ..stores.memory import MemoryStore
from ..values.amounts import Clock
from ..values.calls import Degraded
from .hold import hold_id, new_number
from .quotas import Lines

_LOCAL = re.compile(r"local\(([1-9][0-9]{0,5})\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureMode:
    """One way to answer calls while the store is unavailable."""

    kind: Literal["closed", "local", "open"]
    calls: int = 0
    """Calls that `local` admits of each agent in one outage."""

    @classmethod
    def parse(cls, text: str) -> FailureMode:
        """Read `closed`, `open` or `local(20)`.

        Raises:
            PolicyError: It is not one of them.
        """
        if text == "closed":
            return cls(kind="closed")
        if text == "open":
            return cls(kind="open")
        found = _LOCAL.fullmatch(text)
        if found is None:
            raise PolicyError(
                f"{text!r} is not a failure mode",
                hint="it is 'closed', 'local(20)' or 'open'",
            )
        return cls(kind="local", calls=int(found[1]))


_log = logging.getLogger("toolcell.guard")
_T = TypeVar("_T")
_MAX_PENDING = 100_000


class RecordEvent(Protocol):
    """Records an event of the store, with its own fields."""

    def __call__(self, event: str, **fields: str) -> Awaitable[None]: ...


class Reserved(NamedTuple):
    """The answer to a reservation, and the store that has the hold."""

    found: OutcomeTuple
    lines: Lines
    store: Store | None
    sync: SyncStore | None = None
    """The same store, if it never waits."""

    degraded: Degraded = ""


class Ledger:
    """The guard's access to its store, with a failure mode for outages.

    No reservation is lost: what could not be settled during an outage waits in a
    queue and is settled when the store answers again. If the process ends before
    that, or more than 100,000 settlements wait, the store charges the hold when it
    expires. Each outage is logged and recorded once when it begins and once when it
    ends.
    """

    def __init__(
        self,
        store: Store,
        mode: FailureMode,
        clock: Clock,
        record_event: RecordEvent,
    ) -> None:
        self.store = store
        self.sync = store if isinstance(store, SyncStore) else None
        """The store, if it never waits."""

        self._one_clock = self.sync is not None and self.sync.clock is clock
        self._mode = mode
        self._clock = clock
        self._record_event = record_event
        self._local = MemoryStore(clock=clock)
        self.away = False
        """True from a failure of the store until it answers again."""

        self._pending: deque[tuple[str, Sequence[int] | None]] = deque(
            maxlen=_MAX_PENDING
        )

    async def peek(self, request: Reservation) -> ReservationOutcome:
        """Return the answer that a reservation would get; reserve nothing.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        return await self._call_store(self.store.peek(request))

    async def check(self) -> None:
        """Check that the store answers, unless calls go on without it.

        Raises:
            StoreUnavailableError: The store did not answer, and the mode is closed.
        """
        try:
            await self.peek(Reservation("", (), (), 0))
        except StoreUnavailableError:
            if self._mode.kind == "closed":
                raise

    def reserve_sync(self, number: int, lines: Lines, now: int) -> OutcomeTuple:
        """Reserve what a call needs in a store that never waits.

        Raises:
            StoreUnavailableError: The store is full. That is no outage: in every mode
                the call is refused, or it would go uncounted.
        """
        assert self.sync is not None
        return self.sync.reserve_sync(
            number, lines.demand, now if self._one_clock else None
        )

    async def reserve(
        self, number: int, lines: Lines, now: int, agent_id: str
    ) -> Reserved:
        """Reserve what a call needs; during an outage as the failure mode says.

        Raises:
            StoreUnavailableError: The store did not answer, and the mode is `closed`;
                or it never waits, and is full.
        """
        if self.sync is not None:
            found = self.reserve_sync(number, lines, now)
            return Reserved(found, lines, self.sync, self.sync)
        request = lines.request(hold_id(number))
        try:
            answer = await self._call_store(self.store.reserve(request))
        except StoreUnavailableError:
            self._release_later(request)
            if self._mode.kind == "closed":
                raise
            return self._without_store(number, lines, agent_id)
        except BaseException:
            self._release_later(request)
            raise
        return Reserved(answer, lines, self.store)

    async def settle(
        self,
        number: int,
        lines: Lines,
        store: Store,
        sync: SyncStore | None,
        actual: Sequence[int] | None,
    ) -> None:
        """End a hold, even if the caller is cancelled meanwhile."""
        if sync is not None:
            sync.settle_deferred(number, actual)
            return
        name = lines.name(hold_id(number))
        with anyio.CancelScope(shield=True):
            try:
                await self._call_store(store.settle(name, actual))
            except StoreUnavailableError:
                self._pending.append((name, actual))
            except BaseException as error:
                # If it was settled all the same, a second time changes nothing.
                self._pending.append((name, actual))
                if isinstance(error, anyio.get_cancelled_exc_class()):
                    # A native asyncio cancel ignores anyio's shield, and comes once.
                    with suppress(AuditError):
                        await self._catch_up()
                raise

    async def charge(
        self, lines: Lines, now: int, agent_id: str, used: Mapping[str, int]
    ) -> bool:
        """Charge what was used already; return False if a limit is passed.

        Raises:
            StoreUnavailableError: The store did not answer; nothing is charged.
        """
        if not lines.limits:
            return True
        number = new_number()
        found, taken, store, sync, _ = await self.reserve(number, lines, now, agent_id)
        due = taken.due(found[3], used)
        if store is not None:
            await self.settle(number, taken, store, sync, due)
        states = zip(lines.limits, found[3], due, strict=False)
        return all(level[0] + owed <= limit.amount for limit, level, owed in states)

    async def reset(self, prefix: str) -> int:
        """Forget what was counted under keys with this prefix.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        return await self._call_store(self.store.reset(prefix))

    def _without_store(self, number: int, lines: Lines, agent_id: str) -> Reserved:
        if self._mode.kind == "open":
            return Reserved(NO_LIMITS, lines, None, degraded="open")
        local = self._local
        # A further line, which counts the agent's calls during the outage.
        outage = Charge(f"outage|{agent_id}", 1, self._mode.calls)
        lines = lines.with_outage(outage)
        found = local.reserve_sync(number, lines.demand)
        return Reserved(found, lines, local, local, "local")

    async def _call_store(self, operation: Awaitable[_T]) -> _T:
        try:
            answer = await operation
        except StoreUnavailableError as error:
            await self.on_outage(error.message)
            raise
        # Another thread may have noticed the answer before this settlement was queued.
        if self.away or self._pending:
            await self._on_answer()
        return answer

    def _release_later(self, request: Reservation) -> None:
        """Give back, later, what the store may have reserved before it failed."""
        if request.charges:
            self._pending.append((request.hold_id, [0] * len(request.charges)))

    async def on_outage(self, why: str) -> None:
        """Log and record that the store does not answer, once in an outage."""
        if not self.away:
            self.away = True
            _log.warning("store unavailable, mode %s: %s", self._mode.kind, why)
            try:
                await self._record_event("store_unavailable", mode=self._mode.kind)
            except AuditError:
                self.away = False
                raise

    async def _on_answer(self) -> None:
        # An outage lasts until all is settled. A caller that is cancelled on the way
        # leaves the rest, and the end of the outage, to the next one.
        if await self._catch_up() and self.away:
            self._local = MemoryStore(clock=self._clock)
            await self.on_recovery()

    async def _catch_up(self) -> bool:
        """Settle what waits in the queue; return whether the store answered."""
        while late := self._pop_pending():
            try:
                await self.store.settle(*late)
            except BaseException as error:
                self._pending.appendleft(late)
                if not isinstance(error, StoreUnavailableError):
                    raise
                await self.on_outage(error.message)
                return False
        return True

    def _pop_pending(self) -> tuple[str, Sequence[int] | None] | None:
        try:
            return self._pending.popleft()
        except IndexError:  # another thread may have taken the last one
            return None

    async def on_recovery(self) -> None:
        """Log and record that the store answers again."""
        self.away = False
        _log.warning("store available again")
        await self._record_event("store_available", mode=self._mode.kind)
