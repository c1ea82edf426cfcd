"""The way to the store: caught up after an outage, and never silent."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import anyio

from toolcell.core import StoreUnavailableError

from .clock import Clock
from .decision import Degraded
from .failure import FailureMode
from .memory_store import MemoryStore
from .store import NO_LIMITS, Charge, Outcome, Reservation, Store

_log = logging.getLogger("toolcell.guard")
_T = TypeVar("_T")
_MAX_PENDING = 100_000


class Taken(NamedTuple):
    """What a reservation came to, and where it is kept."""

    outcome: Outcome
    store: Store | None = None
    """None where nothing is kept: there is no limit, or the store is away."""

    degraded: Degraded = ""


NOTHING_TAKEN = Taken(NO_LIMITS)


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
        tell: Callable[[str, str], None],
    ) -> None:
        self.store = store
        self._mode = mode
        self._clock = clock
        self._tell = tell
        self._local: MemoryStore | None = None
        self._away = False
        self._pending: deque[tuple[str, Sequence[int] | None]] = deque(
            maxlen=_MAX_PENDING
        )

    async def peek(self, request: Reservation) -> Outcome:
        """Say what would come of a reservation.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        return await self._ask(self.store.peek(request))

    async def reserve(self, request: Reservation, agent_id: str) -> Taken:
        """Take a reservation, as the failure mode has it while the store is away.

        Raises:
            StoreUnavailableError: The store did not answer, and the mode is `closed`;
                or it is this process's memory, and full.
        """
        try:
            outcome = await self._ask(self.store.reserve(request))
        except StoreUnavailableError:
            self._abandon(request)
            # Memory that is full is not away: going round it would forgive.
            if self._mode.word == "closed" or self.store.instant:
                raise
            return await self._without_store(request, agent_id)
        except BaseException:
            self._abandon(request)
            raise
        return Taken(outcome, self.store)

    async def settle(
        self, store: Store, hold_id: str, actual: Sequence[int] | None
    ) -> bool:
        """End a hold, whoever cancels; return False if it was settled before."""
        if store.instant:
            return await store.settle(hold_id, actual)
        settled = True
        with anyio.CancelScope(shield=True):
            try:
                settled = await self._ask(store.settle(hold_id, actual))
            except StoreUnavailableError:
                self._pending.append((hold_id, actual))
        return settled

    async def reset(self, prefix: str) -> int:
        """Forget what was counted under keys with a prefix.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        return await self._ask(self.store.reset(prefix))

    def outage(self, agent_id: str) -> Charge:
        """Return the line that counts an agent's calls while the store is away."""
        return Charge(f"outage|{agent_id}", 1, self._mode.calls)

    async def _without_store(self, request: Reservation, agent_id: str) -> Taken:
        if self._mode.word == "open":
            return Taken(NO_LIMITS, degraded="open")
        local = self._local = self._local or MemoryStore(clock=self._clock)
        charges = [*request.charges, self.outage(agent_id)]
        outcome = await local.reserve(request._replace(charges=charges))
        return Taken(outcome, local, "local")

    async def _ask(self, operation: Awaitable[_T]) -> _T:
        try:
            answer = await operation
        except StoreUnavailableError as error:
            self._lost(error.message)
            raise
        if self._away:
            await self._found()
        return answer

    def _abandon(self, request: Reservation) -> None:
        """Give back, later, what a store may have taken without being heard."""
        if request.charges and not self.store.instant:
            self._pending.append((request.hold_id, [0] * len(request.charges)))
            self._away = True

    def _lost(self, why: str) -> None:
        if not self._away:
            _log.warning("store unavailable, mode %s: %s", self._mode.word, why)
            self._tell("store_unavailable", self._mode.word)
        self._away = True

    async def _found(self) -> None:
        self._away = False
        self._local = None
        while self._pending:
            hold_id, actual = self._pending.popleft()
            if not await self._caught_up(hold_id, actual):
                return
        _log.warning("store available again")
        self._tell("store_available", self._mode.word)

    async def _caught_up(self, hold_id: str, actual: Sequence[int] | None) -> bool:
        try:
            await self.store.settle(hold_id, actual)
        except BaseException as error:
            self._pending.appendleft((hold_id, actual))
            self._away = True
            if isinstance(error, StoreUnavailableError):
                return False
            raise
        return True
