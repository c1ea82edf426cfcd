"""What makes cells."""

from __future__ import annotations

from typing import Protocol

from ..config.settings import Limits
from .cell import Cell
from .types import CellTraits


class Backend(Protocol):
    """Makes cells. One behaviour suite (`tests/`) holds for every backend."""

    @property
    def traits(self) -> CellTraits: ...

    async def start(self) -> None:
        """Get ready, sweep orphans.

        Raises:
            SandboxUnavailableError: This backend cannot make cells here.
        """

    async def create_cell(self, limits: Limits) -> Cell:
        """Make a never-used cell.

        Raises:
            SandboxUnavailableError: The cell could not be made.
        """

    async def check(self) -> None:
        """Look whether cells can be made, without making one.

        Raises:
            SandboxUnavailableError: What makes them is gone.
        """

    async def aclose(self) -> None:
        """Leave nothing behind."""
