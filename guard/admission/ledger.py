"""The way to the store: caught up after an outage, and never silent."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import anyio

from toolcell.core import AuditError, StoreUnavailableError

from ..stores.base import Charge, Outcome, Reservation, Store
from ..stores.memory import MemoryStore
from ..values.clock import Clock
from .failure_mode import FailureMode

if TYPE_CHECKING:
    from .permit import Permit

_log = logging.getLogger("toolcell.guard")
_T = TypeVar("_T")
_MAX_PENDING = 100_000


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
        tell: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self.store = store
        self.memory = store if isinstance(store, MemoryStore) else None
        """The store, where it is this process's memory and so never waits."""

        self._one_clock = self.memory is not None and self.memory.clock is clock
        self._mode = mode
        self._clock = clock
        self._tell = tell
        self._local = MemoryStore(clock=clock)
        self.away = False
        """Whether the store was last heard not to answer."""

        self._pending: deque[tuple[str, Sequence[int] | None]] = deque(
            maxlen=_MAX_PENDING
        )

    async def peek(self, request: Reservation) -> Outcome:
        """Say what would come of a reservation.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        return await self._ask(self.store.peek(request))

    async def check(self) -> None:
        """Look whether the store answers, unless calls go on without it.

        Raises:
            StoreUnavailableError: It does not.
        """
        try:
            await self.peek(Reservation("", (), (), 0))
        except StoreUnavailableError:
            if self._mode.word == "closed":
                raise

    def reserve_now(self, permit: Permit) -> None:
        """Take what a call needs from this process's memory, if it is the store.

        Raises:
            StoreUnavailableError: It is full. That is not to be away: whatever the
                mode, going round it would forgive.
        """
        memory = self.memory
        assert memory is not None
        now = permit.now if self._one_clock else None
        permit.found = memory.reserve_now(permit.number, permit.lines.needs, now)
        permit.store = memory

    async def reserve(self, permit: Permit) -> None:
        """Take what a call needs, as the failure mode has it while the store is away.

        Raises:
            StoreUnavailableError: The store did not answer, and the mode is `closed`;
                or it is this process's memory, and full.
        """
        if self.memory is not None:
            self.reserve_now(permit)
            return
        request = permit.lines.request(permit.hold_id)
        try:
            permit.found = await self._ask(self.store.reserve(request))
        except StoreUnavailableError:
            self._abandon(request)
            if self._mode.word == "closed":
                raise
            self._without_store(permit)
        except BaseException:
            self._abandon(request)
            raise
        else:
            permit.store = self.store

    async def settle(
        self, permit: Permit, store: Store, actual: Sequence[int] | None
    ) -> None:
        """End a hold, whoever cancels."""
        if isinstance(store, MemoryStore):
            store.settle_soon(permit.number, actual)
            return
        hold_id = permit.hold_id
        with anyio.CancelScope(shield=True):
            try:
                await self._ask(store.settle(hold_id, actual))
            except StoreUnavailableError:
                self._pending.append((hold_id, actual))
            except BaseException as error:
                # It may be settled already, which once more does not change.
                self._pending.append((hold_id, actual))
                if isinstance(error, anyio.get_cancelled_exc_class()):
                    # asyncio's own cancel heeds no shield, and comes but once.
                    with suppress(AuditError):
                        await self._catch_up()
                raise

    async def reset(self, prefix: str) -> int:
        """Forget what was counted under keys with a prefix.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        return await self._ask(self.store.reset(prefix))

    def _without_store(self, permit: Permit) -> None:
        if self._mode.word == "open":
            permit.degraded = "open"
            return
        agent_id = permit.call.agent_id or ""
        local = self._local
        # The line that counts an agent's calls while the store is away.
        outage = Charge(f"outage|{agent_id}", 1, self._mode.calls)
        permit.lines = permit.lines.with_outage(outage)
        permit.found = local.reserve_now(permit.number, permit.lines.needs)
        permit.store, permit.degraded = local, "local"

    async def _ask(self, operation: Awaitable[_T]) -> _T:
        try:
            answer = await operation
        except StoreUnavailableError as error:
            await self.lost(error.message)
            raise
        # What was put off while another thread found the store is pending still.
        if self.away or self._pending:
            await self._found()
        return answer

    def _abandon(self, request: Reservation) -> None:
        """Give back, later, what a store may have taken without being heard."""
        if request.charges:
            self._pending.append((request.hold_id, [0] * len(request.charges)))

    async def lost(self, why: str) -> None:
        """Tell that the store does not answer, once in an outage."""
        if not self.away:
            self.away = True
            _log.warning("store unavailable, mode %s: %s", self._mode.word, why)
            try:
                await self._tell("store_unavailable", self._mode.word)
            except AuditError:
                self.away = False
                raise

    async def _found(self) -> None:
        # An outage lasts until all is caught up: whoever is cancelled while at it
        # leaves the rest, and the end of the outage, to the next one.
        if await self._catch_up() and self.away:
            self._local = MemoryStore(clock=self._clock)
            await self.back()

    async def _catch_up(self) -> bool:
        """Settle what was put off; return whether the store has answered."""
        while late := self._next_late():
            try:
                await self.store.settle(*late)
            except BaseException as error:
                self._pending.appendleft(late)
                if not isinstance(error, StoreUnavailableError):
                    raise
                await self.lost(error.message)
                return False
        return True

    def _next_late(self) -> tuple[str, Sequence[int] | None] | None:
        try:
            return self._pending.popleft()
        except IndexError:  # another thread may have taken the last one
            return None

    async def back(self) -> None:
        """Tell that the store answers again."""
        self.away = False
        _log.warning("store available again")
        await self._tell("store_available", self._mode.word)
