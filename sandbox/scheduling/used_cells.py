"""Cells that ended a program cleanly, made new for the same agent's next program.

A cell that comes back is made new in the background. A run that asks for one meanwhile
waits for it, which takes less time than making a cell. Each renewal has at most one run
that waits for it, and ends in bounded time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
import anyio.abc

from toolcell.core import SandboxError

from ..client.cell import Cell
from ..config.settings import Limits

IDLE_SECONDS = 60.0
"""Seconds that a used cell waits for a program. When it is reached it is destroyed."""

Key = tuple[object, ...]


def key_of(agent_id: str | None, limits: Limits) -> Key:
    """Return the facts that must be equal for two programs to use one cell."""
    held = (limits.memory_mb, limits.pids, limits.cpus)
    return (agent_id, *held, limits.disk_mb, limits.open_files)


@dataclass(eq=False, slots=True)
class _WaitingRun:
    done: anyio.Event = field(default_factory=anyio.Event)
    cell: Cell | None = None


@dataclass(eq=False, slots=True)
class _Line:
    """The cells of one key, and the runs that wait for them."""

    # The last one is still warm and goes first.
    ready: list[tuple[float, Cell]] = field(default_factory=list)
    renewing: int = 0
    waiters: deque[_WaitingRun] = field(default_factory=deque)


class UsedCells:
    """Keeps cells between two programs, each for one agent.

    Args:
        max_cells: The largest number of cells that wait for a program. When it is
            reached the oldest is destroyed.
        tasks: Owns the background work; it outlives this object.
        clock: Returns seconds that never decrease.
    """

    def __init__(
        self,
        max_cells: int,
        tasks: anyio.abc.TaskGroup,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_cells = max_cells
        self._tasks = tasks
        self._clock = clock
        self._lines: dict[Key, _Line] = {}
        self._closed = False

    async def take(self, key: Key) -> Cell | None:
        """Return a cell that is as new, or None if there is none to wait for."""
        line = self._lines.get(key)
        if line is None:
            return None
        while line.ready:
            _, cell = line.ready.pop()
            if cell.alive():
                return cell
            self._tasks.start_soon(cell.kill)
        if len(line.waiters) >= line.renewing:
            return None
        return await self._wait(key, line)

    async def _wait(self, key: Key, line: _Line) -> Cell | None:
        waiter = _WaitingRun()
        line.waiters.append(waiter)
        try:
            await waiter.done.wait()
        except BaseException:
            if waiter in line.waiters:
                line.waiters.remove(waiter)
            elif waiter.cell is not None:
                self._add(key, line, waiter.cell)
            raise
        return waiter.cell

    def put(self, key: Key, cell: Cell) -> None:
        """Make a cell new, in the background, for the next program of its key."""
        line = self._lines.setdefault(key, _Line())
        line.renewing += 1
        self._tasks.start_soon(self._renew, key, line, cell)

    async def _renew(self, key: Key, line: _Line, cell: Cell) -> None:
        renewed: Cell | None = None
        try:
            await cell.renew()
            renewed = cell
        except SandboxError:
            pass
        finally:
            line.renewing -= 1
            self._add(key, line, renewed)
            if renewed is None:
                await cell.kill()

    def _add(self, key: Key, line: _Line, cell: Cell | None) -> None:
        """Give a cell to a waiting run, or keep it; None is one that was lost."""
        if cell is not None and self._closed:
            self._tasks.start_soon(cell.kill)
            cell = None
        if line.waiters:
            waiter = line.waiters.popleft()
            waiter.cell = cell
            waiter.done.set()
        elif cell is not None:
            line.ready.append((self._clock(), cell))
            self._lines[key] = line
            self._evict()
        if not (line.ready or line.renewing or line.waiters):
            self._lines.pop(key, None)

    def _evict(self) -> None:
        if sum(len(line.ready) for line in self._lines.values()) <= self._max_cells:
            return
        oldest = min(line.ready[0][0] for line in self._lines.values() if line.ready)
        self._end_older_than(oldest)

    def destroy_unfit(self) -> None:
        """Destroy cells that have waited for too long, or have ended."""
        self._end_older_than(self._clock() - IDLE_SECONDS)

    def _end_older_than(self, since: float) -> None:
        for key, line in list(self._lines.items()):
            ended = [
                (at, cell) for at, cell in line.ready if at <= since or not cell.alive()
            ]
            for each in ended:
                line.ready.remove(each)
                self._tasks.start_soon(each[1].kill)
            if not (line.ready or line.renewing or line.waiters):
                del self._lines[key]

    async def aclose(self) -> None:
        """Destroy the cells; one that is being made new is destroyed after that."""
        self._closed = True
        lines, self._lines = self._lines, {}
        async with anyio.create_task_group() as ends:
            for line in lines.values():
                for _, cell in line.ready:
                    ends.start_soon(cell.kill)
                line.ready.clear()
