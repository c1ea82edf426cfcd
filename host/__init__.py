"""The doors to toolcell: the host that wires all rooms, and the command line."""

from .cli.main import main
from .lazy import __getattr__ as __getattr__

__all__ = ["Host", "HostConfig", "main"]
