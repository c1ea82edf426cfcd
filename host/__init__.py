"""The doors to toolcell: the host that wires all rooms, and the command line."""

import typing

from .cli.main import main
from .lazy import __getattr__ as __getattr__

if typing.TYPE_CHECKING:
    from .config.host_config import HostConfig
    from .runtime.host import Host

__all__ = ["Host", "HostConfig", "main"]
