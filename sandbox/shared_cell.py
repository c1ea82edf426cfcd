"""A cell that a session and its forks share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio

from toolcell.core import CellLostError, SandboxUnavailableError

from .client.cell import Cell
from .config.settings import Network
from .processes.process import Process
from .processes.table import ProcessTable

if TYPE_CHECKING:
    from .client.types import Spawn
    from .network.egress import Egress

_OPEN_ANOTHER = "open a new session"
# The errors of a program whose cell is taken away, also of one that just starts.
_LOST = (CellLostError, SandboxUnavailableError)
MAIN_BRANCH = "main"
"""The branch of the session itself."""


class SharedCell:
    """The cell that a session shares with its forks; one of them runs at a time.

    `async with shared as cell` waits until no run and no question is under way.
    Commands need no turn: they run beside each other and beside runs.
    """

    def __init__(self, cell: Cell, network: Network) -> None:
        self.cell = cell
        self.network = network
        self.egress: Egress | None = None
        self.was_out = False
        # Not a Lock, which belongs to a task: each step of a stream may be another's.
        self.turn = anyio.Semaphore(1, max_value=1, fast_acquire=True)
        self.made = 0
        self.branches = {MAIN_BRANCH}
        self.used = time.monotonic()
        self.over = ""
        self._commands: ProcessTable | None = None

    @property
    def alive(self) -> bool:
        """True if the next run finds it; meaningful while no run is under way."""
        if self.over:
            return False
        # A cell whose commands live may speak at any time; its loss ends them.
        return bool(self.processes) or self.cell.alive()

    @property
    def processes(self) -> tuple[Process, ...]:
        """The commands that run in the cell."""
        return self._commands.living if self._commands is not None else ()

    @property
    def is_busy(self) -> bool:
        """True while a run or a command is under way."""
        return self.turn.value == 0 or bool(self.processes)

    async def commands(self, spawn: Spawn) -> ProcessTable:
        """Return what starts commands in the cell.

        Args:
            spawn: Starts tasks that may live as long as the manager.

        Raises:
            CellLostError: The cell is gone.
            SandboxUnavailableError: The cell did not start.
        """
        if self._commands is None:
            async with self as cell:
                channel = await cell.open_channel()
                # Another task may have waited for the same turn.
                self._commands = self._commands or ProcessTable(
                    channel, cell.traits, spawn
                )
        return self._commands

    async def __aenter__(self) -> Cell:
        await self.turn.acquire()
        if self.over:
            self.turn.release()
            raise CellLostError(self.over, hint=_OPEN_ANOTHER)
        return self.cell

    async def __aexit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: object
    ) -> None:
        try:
            lost = isinstance(error, _LOST)
            if lost or (error is not None and not self.cell.settled):
                # A half-done run leaves no usable state.
                await self.cell.kill()
                if self.over and lost:
                    raise CellLostError(self.over, hint=_OPEN_ANOTHER) from None
        finally:
            self.egress = None
            self.used = time.monotonic()
            self.turn.release()
