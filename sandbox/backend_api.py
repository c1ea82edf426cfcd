"""The parts from which other packages make backends; docs/backends.md shows one."""

from .backends.cell_bundle import bundle, command
from .backends.cell_settings import cell_settings
from .client.backend import Backend
from .client.cell import Cell
from .client.channel import Channel
from .client.types import CellProcess, CellTraits
from .config.settings import enforcers

__all__ = [
    "Backend",
    "Cell",
    "CellProcess",
    "CellTraits",
    "Channel",
    "bundle",
    "cell_settings",
    "command",
    "enforcers",
]
