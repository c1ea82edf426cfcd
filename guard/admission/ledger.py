"""The way to the store: caught up after an outage, and never silent."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

import anyio

from toolcell.core import AuditError, StoreUnavailableError

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
from ..values.clock import Clock
from ..values.decision import Degraded
from .failure_mode import FailureMode
from .hold_ids import hold_id
from .quotas import Lines

_log = logging.getLogger("toolcell.guard")
_T = TypeVar("_T")
_MAX_PENDING = 100_000


class Reserved(NamedTuple):
    """What came of a reservation, and where it is."""

    found: OutcomeTuple
    lines: Lines
    store: Store | None
    sync: SyncStore | None = None
    """The same store, where it never waits."""

    degraded: Degraded = ""


class Ledger:
    """A store with a failure mode.

    What could not be settled is settled when the store answers again, or is charged
    when its hold ends.
    """

    def __init__(
        self,
        store: Store,
        mode: FailureMode,
        clock: Clock,
        record_event: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self.store = store
        self.sync = store if isinstance(store, SyncStore) else None
        """The store, where it never waits."""

        self._one_clock = self.sync is not None and self.sync.clock is clock
        self._mode = mode
        self._clock = clock
        self._record_event = record_event
        self._local = MemoryStore(clock=clock)
        self.away = False
        """Whether the store was last heard not to answer."""

        self._pending: deque[tuple[str, Sequence[int] | None]] = deque(
            maxlen=_MAX_PENDING
        )

    async def peek(self, request: Reservation) -> ReservationOutcome:
        """Say what would come of a reservation.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        return await self._call_store(self.store.peek(request))

    async def check(self) -> None:
        """Look whether the store answers, unless calls go on without it.

        Raises:
            StoreUnavailableError: It does not.
        """
        try:
            await self.peek(Reservation("", (), (), 0))
        except StoreUnavailableError:
            if self._mode.kind == "closed":
                raise

    def reserve_sync(self, number: int, lines: Lines, now: int) -> OutcomeTuple:
        """Take what a call needs from a store that never waits.

        Raises:
            StoreUnavailableError: It is full. That is not to be away: whatever the
                mode, going round it would forgive.
        """
        assert self.sync is not None
        return self.sync.reserve_sync(
            number, lines.demand, now if self._one_clock else None
        )

    async def reserve(
        self, number: int, lines: Lines, now: int, agent_id: str
    ) -> Reserved:
        """Take what a call needs, as the failure mode has it while the store is away.

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
        store: Store,
        sync: SyncStore | None,
        actual: Sequence[int] | None,
    ) -> None:
        """End a hold, whoever cancels."""
        if sync is not None:
            sync.settle_deferred(number, actual)
            return
        name = hold_id(number)
        with anyio.CancelScope(shield=True):
            try:
                await self._call_store(store.settle(name, actual))
            except StoreUnavailableError:
                self._pending.append((name, actual))
            except BaseException as error:
                # It may be settled already, which once more does not change.
                self._pending.append((name, actual))
                if isinstance(error, anyio.get_cancelled_exc_class()):
                    # A native asyncio cancel ignores anyio's shield, and comes once.
                    with suppress(AuditError):
                        await self._catch_up()
                raise

    async def reset(self, prefix: str) -> int:
        """Forget what was counted under keys with a prefix.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        return await self._call_store(self.store.reset(prefix))

    def _without_store(self, number: int, lines: Lines, agent_id: str) -> Reserved:
        if self._mode.kind == "open":
            return Reserved(NO_LIMITS, lines, None, degraded="open")
        local = self._local
        # The line that counts an agent's calls while the store is away.
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
        # What was put off while another thread found the store is pending still.
        if self.away or self._pending:
            await self._on_answer()
        return answer

    def _release_later(self, request: Reservation) -> None:
        """Give back, later, what a store may have taken without being heard."""
        if request.charges:
            self._pending.append((request.hold_id, [0] * len(request.charges)))

    async def on_outage(self, why: str) -> None:
        """Tell that the store does not answer, once in an outage."""
        if not self.away:
            self.away = True
            _log.warning("store unavailable, mode %s: %s", self._mode.kind, why)
            try:
                await self._record_event("store_unavailable", self._mode.kind)
            except AuditError:
                self.away = False
                raise

    async def _on_answer(self) -> None:
        # An outage lasts until all is caught up: whoever is cancelled while at it
        # leaves the rest, and the end of the outage, to the next one.
        if await self._catch_up() and self.away:
            self._local = MemoryStore(clock=self._clock)
            await self.on_recovery()

    async def _catch_up(self) -> bool:
        """Settle what was put off; return whether the store has answered."""
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
        """Tell that the store answers again."""
        self.away = False
        _log.warning("store available again")
        await self._record_event("store_available", self._mode.kind)
