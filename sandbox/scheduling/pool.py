"""A pool of never-used cells, and the destruction of used ones in the background."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

import anyio
import anyio.abc
from pydantic import BaseModel, ConfigDict

from toolcell.core import SandboxError

from ..client.backend import Backend
from ..client.cell import Cell
from ..config.settings import Limits, SandboxConfig
from .cell_events import CellEvents
from .used_cells import Owner, UsedCells, agent_of, key_of

_RETRY_SECONDS = 1.0
_HEALTH_SECONDS = 5.0
# One cell is made while another gets ready.
_FILLERS = 2
# Runs that begin together end sooner if nothing is made beside them.
_CALM_SECONDS = 0.02
_REFILL_DELAY_LIMIT = 0.1


class PoolStats(BaseModel):
    """The state of a manager's pool of prepared cells."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    size: int
    """The number of cells that it keeps ready: `SandboxConfig.pool`."""

    ready: int
    """The number of cells that are ready now."""

    made: int
    """The number of cells that were made for it so far; over time, the rate at which it
    is refilled."""

    discarded: int
    """The number of these that were discarded unused, because they had ended."""

    waiting: int
    """The number of runs and sessions that wait for their turn now."""


class Pool:
    """Keeps `config.pool` cells ready and refills in the background.

    A ready cell was never used, and leaves the pool for one run or session. Used cells
    that `give_back` keeps are apart, for programs of the same owner. Ready cells have
    the limits of the configuration; for other limits one is made on demand. A refill
    waits while runs begin, at most 0.1 seconds, since it would slow them. A cell that
    cannot be made ahead is tried again after a second; `take` reports the error.

    Args:
        backend: Makes the cells.
        config: The configuration; `pool` and `limits` count.
        tasks: Owns the background work; it outlives the pool.
        events: Reports cells that cannot be made, are lost, or cannot be used again.
        clock: Returns seconds that never decrease.
    """

    def __init__(
        self,
        backend: Backend,
        config: SandboxConfig,
        tasks: anyio.abc.TaskGroup,
        events: CellEvents,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._config = config
        self._tasks = tasks
        self._ready: deque[Cell] = deque()
        self._coming = 0
        self._scope = anyio.CancelScope()
        self._wanted = anyio.Event()
        self._closed = False
        self._events = events
        self._clock = clock
        self._taken_at = -math.inf
        self._made = 0
        self._discarded = 0
        self._used = UsedCells(config.max_concurrency, tasks, events, clock)

    def start(self) -> None:
        """Begin to fill the pool, if it has a size, and to look after its cells."""
        if self._config.pool or self._config.programs_per_cell > 1:
            self._tasks.start_soon(self._work)

    async def _work(self) -> None:
        with self._scope:
            async with anyio.create_task_group() as workers:
                for _ in range(min(self._config.pool, _FILLERS)):
                    workers.start_soon(self._fill)
                while True:
                    await anyio.sleep(_HEALTH_SECONDS)
                    self.replace_dead()

    async def _fill(self) -> None:
        while True:
            while await self._calm_and_short():
                self._coming += 1
                try:
                    made = await self._add_one()
                finally:
                    self._coming -= 1
                if not made:
                    await anyio.sleep(_RETRY_SECONDS)
            if self._wanted.is_set():
                self._wanted = anyio.Event()
            await self._wanted.wait()

    async def _calm_and_short(self) -> bool:
        """Wait while runs begin, but not for long; return True if a cell is missing."""
        with anyio.move_on_after(_REFILL_DELAY_LIMIT):
            # No event: it would have to be made for each run.
            while (  # noqa: ASYNC110
                rest := self._taken_at + _CALM_SECONDS - self._clock()
            ) > 0:
                await anyio.sleep(rest)
        return len(self._ready) + self._coming < self._config.pool

    async def _add_one(self) -> bool:
        """Make a cell and get it ready; return False if that failed."""
        try:
            cell = await self._create(self._config.limits)
        except (SandboxError, OSError):
            # A run that finds the pool empty makes its own cell and reports why.
            return False
        try:
            await cell.wait_ready()
        except SandboxError:
            self._events.failed("not_started")
            await cell.kill()
            return False
        except BaseException:
            await cell.kill()
            raise
        if self._closed:
            await cell.kill()
            return False
        self._made += 1
        self._events.started()
        self._ready.append(cell)
        return True

    async def take(self, limits: Limits) -> Cell:
        """Return a never-used cell: a ready one with these limits, else a new one.

        Raises:
            SandboxUnavailableError: It could not be made.
        """
        self._taken_at = self._clock()
        mine = self._config.limits
        while self._ready and (limits is mine or limits.of_cell == mine.of_cell):
            cell = self._ready.popleft()
            # To refill now would compete with the run that is about to begin.
            if len(self._ready) <= self._config.pool // 2:
                self._wanted.set()
            if cell.alive():
                return cell
            self._discarded += 1
            self._events.lost("ready")
            await self.discard(cell)
        return await self._create(limits)

    async def _create(self, limits: Limits) -> Cell:
        try:
            return await self._backend.create_cell(limits)
        except (SandboxError, OSError):
            self._events.failed("not_made")
            raise

    async def take_again(self, limits: Limits, owner: Owner) -> Cell:
        """Return a cell that ran programs of this owner alone, or a never-used one.

        Raises:
            SandboxUnavailableError: It could not be made.
        """
        cell = await self._used.take(key_of(owner, limits))
        return cell or await self.take(limits)

    async def give_back(self, cell: Cell, limits: Limits, owner: Owner) -> None:
        """Keep a cell for the owner's next program, if the last one ended cleanly."""
        again = cell.clean and cell.program_number < self._config.programs_per_cell
        if again and not self._closed:
            await self._used.put(key_of(owner, limits), cell)
            return
        if not cell.clean:
            self._events.discarded("not_clean", agent_of(owner))
        await self.discard(cell)

    def replace_dead(self) -> None:
        """Replace ready cells that have ended, or sent something unrequested."""
        self._used.destroy_idle()
        dead = [cell for cell in self._ready if not cell.alive()]
        for cell in dead:
            self._ready.remove(cell)
            self._events.lost("ready")
            self._tasks.start_soon(cell.kill)
        self._discarded += len(dead)
        if dead:
            self._wanted.set()

    def stats(self, waiting: int) -> PoolStats:
        """Return the state of the pool.

        Args:
            waiting: The number of runs and sessions that wait for a cell.
        """
        return PoolStats(
            size=self._config.pool,
            ready=len(self._ready),
            made=self._made,
            discarded=self._discarded,
            waiting=waiting,
        )

    async def discard(self, cell: Cell) -> None:
        """Destroy a cell, in the background while the pool is open."""
        self._wanted.set()
        if self._closed:
            await cell.kill()
        else:
            self._tasks.start_soon(cell.kill)

    async def destroy(self, cell: Cell) -> None:
        """Destroy a cell before control returns; if cancelled, in the background."""
        try:
            await cell.kill()
        finally:
            if not cell.gone:
                await self.discard(cell)

    async def aclose(self) -> None:
        """Stop filling and destroy what is ready."""
        self._closed = True
        self._scope.cancel()
        await self._used.aclose()
        async with anyio.create_task_group() as ends:
            while self._ready:
                ends.start_soon(self._ready.popleft().kill)
