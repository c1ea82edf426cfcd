"""The sandbox on many machines: an agent on each, and a driver that places runs."""

import typing

from toolcell.core.lazy_face import lazy_face as _lazy_face

if typing.TYPE_CHECKING:
    from .directory.records import FixedNodes
    from .directory.redis import RedisDirectory
    from .driver.sandbox import ClusterSandbox
    from .membership.directory import RayDirectory
    from .membership.settings import NodeSettings
    from .node.agent import NodeAgent
    from .wire.handshake import new_token

__all__ = [
    "ClusterSandbox",
    "FixedNodes",
    "NodeAgent",
    "NodeSettings",
    "RayDirectory",
    "RedisDirectory",
    "new_token",
]

__getattr__ = _lazy_face(
    __name__,
    {
        ".directory.records": "FixedNodes",
        ".directory.redis": "RedisDirectory",
        ".driver.sandbox": "ClusterSandbox",
        ".membership.directory": "RayDirectory",
        ".membership.settings": "NodeSettings",
        ".node.agent": "NodeAgent",
        ".wire.handshake": "new_token",
    },
)
