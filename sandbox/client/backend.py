"""The interface of backends, which make cells."""

from __future__ import annotations

from pathlib import Path
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

    async def show_layer(self, layer: Path, *, finished: bool) -> None:
        """Have cells see a layer of packages, where they see no files of this machine.

        Args:
            layer: Its folder here.
            finished: True if nothing will be added to it any more.

        Raises:
            SandboxUnavailableError: It could not be copied.
        """

    async def check(self) -> None:
        """Ask whether cells can be made, without making one.

        Raises:
            SandboxUnavailableError: The engine or the launcher is gone.
        """

    async def aclose(self) -> None:
        """Remove everything that it made; cells that are still in use end."""
