"""The cells that runs and sessions use now."""

from __future__ import annotations

from collections.abc import Iterator

import anyio

from ..client.cell import Cell

_STOP_SECONDS = 2.0


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


async def _stop(cell: Cell) -> None:
    await cell.stop()
    await cell.wait_idle()
