"""Cells that ended a program cleanly, made new for the same owner's next program."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from operator import attrgetter

import anyio
import anyio.abc

from toolcell.core import CellLostError

from ..client.cell import Cell
from ..config.settings import LIMITS, Limits
from .cell_events import CellEvents

IDLE_SECONDS = 60.0
"""Seconds that a used cell waits for a program. When it is reached it is destroyed."""

_limits_of_cell = attrgetter(*(name for name in LIMITS if LIMITS[name].of_cell))

Owner = str | int | None
"""The agent whose programs use a cell in turn; or, of programs without an agent, the
number of their batch."""

Key = tuple[Owner, tuple[float, ...]]
"""The owner, and the limits of its cells."""


def agent_of(owner: Owner) -> str | None:
    """Return the agent, if the owner is one."""
    return owner if isinstance(owner, str) else None


def key_of(owner: Owner, limits: Limits) -> Key:
    """Return the facts that must be equal for two programs to use one cell."""
    return owner, _limits_of_cell(limits)


class UsedCells:
    """Keeps cells between two programs, each for one owner.

    A cell is made new while it waits here. A caller that comes before it is ready waits
    for it, which takes less time than a new cell.

    Args:
        max_cells: The largest number of cells that wait for a program. When it is
            reached the oldest is destroyed.
        tasks: Owns the background work; it outlives this object.
        events: Reports cells that could not be made new.
        clock: Returns seconds that never decrease.
    """

    def __init__(
        self,
        max_cells: int,
        tasks: anyio.abc.TaskGroup,
        events: CellEvents,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_cells = max_cells
        self._tasks = tasks
        self._events = events
        self._clock = clock
        # The oldest first: it is the most likely to be ready.
        self._waiting: dict[Key, deque[tuple[float, Cell]]] = {}
        self._count = 0
        self._closed = False

    async def put(self, key: Key, cell: Cell) -> None:
        """Keep a cell, which is being made new, for the next program of its key."""
        if self._closed:
            await cell.kill()
            return
        self._waiting.setdefault(key, deque()).append((self._clock(), cell))
        self._count += 1
        if self._count > self._max_cells:
            self._drop_oldest()

    async def take(self, key: Key) -> Cell | None:
        """Return a cell that was made new, or None if there is none."""
        while key in self._waiting:
            cell = self._pop(key)
            try:
                await cell.finish_renewal()
                if cell.alive():
                    return cell
            except CellLostError:
                pass
            except BaseException:
                await cell.kill()
                raise
            self._events.discarded("not_renewed", agent_of(key[0]))
            await cell.kill()
        return None

    def _pop(self, key: Key) -> Cell:
        line = self._waiting[key]
        _, cell = line.popleft()
        self._count -= 1
        if not line:
            del self._waiting[key]
        return cell

    def _drop_oldest(self) -> None:
        key = min(self._waiting, key=lambda each: self._waiting[each][0][0])
        self._tasks.start_soon(self._pop(key).kill)

    def destroy_idle(self) -> None:
        """Destroy cells that have waited for too long."""
        since = self._clock() - IDLE_SECONDS
        for key in list(self._waiting):
            while key in self._waiting and self._waiting[key][0][0] <= since:
                self._tasks.start_soon(self._pop(key).kill)

    async def aclose(self) -> None:
        """Destroy all of them, and those that come later."""
        self._closed = True
        async with anyio.create_task_group() as ends:
            for key in list(self._waiting):
                while key in self._waiting:
                    ends.start_soon(self._pop(key).kill)
