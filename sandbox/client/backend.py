"""The interface of backends, which make cells."""

from __future__ import annotations

from typing import Protocol

from ..config.settings import Limits
from .cell import Cell
from .types import CellTraits


class Backend(Protocol):
    """Makes the cells of one manager.

    `start` comes first and `aclose` last; cells may be made by several tasks at once.
    The tests of behaviour run on every backend.
    """

    @property
    def traits(self) -> CellTraits:
        """The promises of its cells; final once it has started."""
        ...

    async def start(self) -> None:
        """Get ready to make cells, and remove those of dead hosts.

        Raises:
            SandboxUnavailableError: This backend cannot make cells here.
        """

    async def create_cell(self, limits: Limits) -> Cell:
        """Make a cell that has run no program.

        Raises:
            SandboxUnavailableError: The cell could not be made.
        """

    async def check(self) -> None:
        """Ask whether cells can be made, without making one.

        Raises:
            SandboxUnavailableError: The engine or the launcher is gone.
        """

    async def aclose(self) -> None:
        """Remove everything that it made; cells that are still in use end."""
