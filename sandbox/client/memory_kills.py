"""The processes of a cell that were killed for memory, as its host knows them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .types import CellProcess


class MemoryKills:
    """The kills for memory that a cell has reported, and has outlived."""

    def __init__(self) -> None:
        self._total = 0
        self._told = 0.0

    def note(self, total: int) -> None:
        """Take in how many there were in the cell so far."""
        if total > self._total:
            self._total, self._told = total, time.monotonic()

    async def ended(self, process: CellProcess, began: float) -> bool:
        """Return True if another one ended the cell.

        Args:
            process: The handle of the cell, which has ended.
            began: The start of its last run, by `time.monotonic`.
        """
        return await process.killed_for_memory(self._total, max(began, self._told))
