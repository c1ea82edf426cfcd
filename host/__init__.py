"""The doors to toolcell: the host that wires all rooms, and the command line."""

import typing

from toolcell.core.lazy_face import lazy_face as _lazy_face

from .cli.main import main

if typing.TYPE_CHECKING:
    from .config.host_config import HostConfig
    from .runtime.host import Host

__all__ = ["Host", "HostConfig", "main"]

__getattr__ = _lazy_face(
    __name__, {".config.host_config": "HostConfig", ".runtime.host": "Host"}
)
