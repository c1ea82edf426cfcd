"""Gives cells to the runs and sessions of a manager, in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.abc

from toolcell.core import SandboxUnavailableError

from ..client.backend import Backend
from ..client.cell import Cell
from ..config.settings import Limits, SandboxConfig
from .cell_events import CellEvents
from .fair_queue import FairQueue
from .pool import Pool, PoolStats
from .used_cells import Owner

_STOP_SECONDS = 2.0


class _Once:
    """Calls a function at the first call of itself."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function: Callable[[], None] | None = function

    def __call__(self) -> None:
        function, self._function = self._function, None
        if function is not None:
            function()


class ActiveCells:
    """The cells that runs and sessions of one manager use now."""

    def __init__(self) -> None:
        self._cells: set[Cell] = set()

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._cells)

    def add(self, cell: Cell) -> None:
        """Add a cell that is about to be used."""
        self._cells.add(cell)

    def discard(self, cell: Cell) -> None:
        """Forget a cell; one that is unknown is fine."""
        self._cells.discard(cell)

    async def stop(self) -> None:
        """Stop the runs, then kill the cells.

        Runs end as `cancelled` if their supervisors answer within two seconds. Idle
        sessions lose their cells.
        """
        with anyio.move_on_after(_STOP_SECONDS):
            async with anyio.create_task_group() as stops:
                for cell in self._cells:
                    stops.start_soon(_stop, cell)
        async with anyio.create_task_group() as ends:
            for cell in self._cells:
                ends.start_soon(cell.kill)


class CellSupply:
    """Gives cells to the runs and sessions of one manager, in turn.

    At most `config.max_concurrency` cells are in use at a time. Every cell is destroyed
    in the end, or kept for the next program of the same agent or batch.

    Args:
        backend: Makes the cells.
        config: The configuration; its limits of concurrency and of the pool count.
        tasks: Owns the background work; it outlives this.
        active: Gets the cells that are in use.
        events: Reports what goes wrong with them.
    """

    def __init__(
        self,
        backend: Backend,
        config: SandboxConfig,
        tasks: anyio.abc.TaskGroup,
        active: ActiveCells,
        events: CellEvents,
    ) -> None:
        self.events = events
        """Reports what goes wrong with the cells."""

        self._queue = FairQueue(config.max_concurrency, config.max_queue)
        self._active = active
        self._pool = Pool(backend, config, tasks, events)
        self._pool.start()
        self._closed = False

    @property
    def stats(self) -> PoolStats:
        """The state of the pool of prepared cells."""
        return self._pool.stats(self._queue.waiting)

    @asynccontextmanager
    async def cell(
        self, limits: Limits, agent_id: str | None, owner: Owner = None
    ) -> AsyncIterator[Cell]:
        """Wait for a turn and hold a cell.

        Args:
            limits: The limits of the cell.
            agent_id: The agent that waits for it.
            owner: Whose programs the cell may have run, and whose next one it may be
                kept for; None: it was never used, and is destroyed.

        Raises:
            SandboxUnavailableError: Too many wait, no cell can be made, or the supply
                was closed.
        """
        entered = await self._queue.enter(agent_id)
        leave = _Once(partial(self._queue.leave, entered))
        try:
            self._require_open()
            if owner is not None:
                cell = await self._pool.take_again(limits, owner)
            else:
                cell = await self._pool.take(limits)
            self._active.add(cell)
            # Whoever holds a cell that has ended keeps no other from a place.
            cell.on_gone = partial(self._end_use, cell, leave)
            try:
                # It may have been closed meanwhile, without this cell.
                self._require_open()
                yield cell
            except BaseException:
                # Cancelled or lost: nothing of the cell may outlive this call.
                await self._pool.destroy(cell)
                raise
            else:
                if owner is not None:
                    await self._pool.give_back(cell, limits, owner)
                else:
                    await self._pool.discard(cell)
            finally:
                self._note_start(cell)
                self._end_use(cell, leave)
        finally:
            leave()

    def _end_use(self, cell: Cell, leave: _Once) -> None:
        self._active.discard(cell)
        leave()

    def _note_start(self, cell: Cell) -> None:
        if cell.handshake.started:
            self.events.started()
        elif cell.handshake.started is False:
            self.events.failed("not_started")

    async def aclose(self) -> None:
        """Refuse those that wait, stop runs as `cancelled`, and destroy all cells."""
        self._closed = self.events.closed = True
        self._queue.close()
        await self._active.stop()
        await self._pool.aclose()

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxUnavailableError(
                "the manager was closed", hint="open a new SandboxManager"
            )


async def _stop(cell: Cell) -> None:
    await cell.stop()
    await cell.wait_idle()
