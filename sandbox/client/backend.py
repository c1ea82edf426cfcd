"""What makes cells, and what it promises about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from ..config.settings import Enforcer, IsolationLevel, Limits

if TYPE_CHECKING:
    from .cell import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTraits:
    """What a backend promises about the cells that it makes."""

    backend: Literal["docker", "subprocess"]
    level: IsolationLevel
    layers: tuple[str, ...]
    enforced_by: dict[str, Enforcer] = field(default_factory=dict)
    required_layers: tuple[str, ...] = ()


class CellProcess(Protocol):
    """How a backend kills what it made."""

    async def kill(self) -> None:
        """Kill every process of the cell; return when none is left. Never raises.

        Called again if it was cut short, and only then.
        """

    async def killed_for_memory(self, known: int, since: float) -> bool:
        """Tell whether a cell that ended ran out of memory at last. Never raises.

        Args:
            known: How many kills for memory the supervisor has told of.
            since: When the last run began, by `time.monotonic`.
        """


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

    async def close(self) -> None:
        """Leave nothing behind."""
