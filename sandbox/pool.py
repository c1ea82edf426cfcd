"""Never-used cells, kept ready; used ones, destroyed off the caller's path."""

from __future__ import annotations

from collections import deque

import anyio
import anyio.abc

from toolcell.core import SandboxError

from .cell_client import Backend, Cell
from .config import Limits, SandboxConfig

_RETRY_SECONDS = 1.0
# One cell is made while another gets ready.
_FILLERS = 2


class Pool:
    """Keeps `config.pool` cells ready and refills in the background.

    Args:
        backend: Makes the cells.
        config: Its `pool` and `limits`.
        tasks: Owns the background work; it outlives the pool.
    """

    def __init__(
        self, backend: Backend, config: SandboxConfig, tasks: anyio.abc.TaskGroup
    ) -> None:
        self._backend = backend
        self._config = config
        self._tasks = tasks
        self._ready: deque[Cell] = deque()
        self._coming = 0
        self._fillers: list[anyio.CancelScope] = []
        self._wanted = anyio.Event()
        self._closed = False

    def start(self) -> None:
        """Begin to fill the pool, if it has a size."""
        for _ in range(min(self._config.pool, _FILLERS)):
            self._tasks.start_soon(self._fill)

    async def _fill(self) -> None:
        with anyio.CancelScope() as scope:
            self._fillers.append(scope)
            while True:
                while len(self._ready) + self._coming < self._config.pool:
                    self._coming += 1
                    try:
                        await self._add_one()
                    finally:
                        self._coming -= 1
                if self._wanted.is_set():
                    self._wanted = anyio.Event()
                await self._wanted.wait()

    async def _add_one(self) -> None:
        try:
            cell = await self._backend.create_cell(self._config.limits)
        except SandboxError:
            # A run that finds the pool empty makes its own cell and hears why.
            await anyio.sleep(_RETRY_SECONDS)
            return
        try:
            await cell.wait_ready()
        except SandboxError:
            await cell.kill()
            await anyio.sleep(_RETRY_SECONDS)
        except BaseException:
            await cell.kill()
            raise
        else:
            self._ready.append(cell)

    async def take(self, limits: Limits) -> Cell:
        """Return a never-used cell: a ready one with these limits, else a new one.

        Raises:
            SandboxUnavailableError: It could not be made.
        """
        mine = self._config.limits
        same = (limits.memory_mb, limits.pids, limits.cpus) == (
            mine.memory_mb,
            mine.pids,
            mine.cpus,
        )
        same_files = (limits.disk_mb, limits.open_files) == (
            mine.disk_mb,
            mine.open_files,
        )
        while self._ready and same and same_files:
            cell = self._ready.popleft()
            # To refill now would compete with the run that is about to begin.
            if len(self._ready) <= self._config.pool // 2:
                self._wanted.set()
            if cell.alive():
                return cell
            await self.discard(cell)
        return await self._backend.create_cell(limits)

    @property
    def ready(self) -> int:
        """How many cells are ready now."""
        return len(self._ready)

    async def discard(self, cell: Cell) -> None:
        """Destroy a cell, in the background while the pool is open."""
        self._wanted.set()
        if self._closed:
            await cell.kill()
        else:
            self._tasks.start_soon(cell.kill)

    async def close(self) -> None:
        """Stop filling and destroy what is ready."""
        self._closed = True
        for scope in self._fillers:
            scope.cancel()
        while self._ready:
            await self.discard(self._ready.popleft())
