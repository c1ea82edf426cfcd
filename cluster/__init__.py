"""The sandbox on many machines: an agent on each, and a driver that places runs."""

import typing

from toolcell.core.lazy_face import lazy_face as _lazy_face

if typing.TYPE_CHECKING:
    from .directory.records import Directory, FixedNodes, NodeRecord
    from .directory.redis import RedisDirectory
    from .driver.sandbox import ClusterSandbox
    from .node.agent import NodeAgent
    from .wire.handshake import new_token

__all__ = [
    "ClusterSandbox",
    "Directory",
    "FixedNodes",
    "NodeAgent",
    "NodeRecord",
    "RedisDirectory",
    "new_token",
]

__getattr__ = _lazy_face(
    __name__,
    {
        ".directory.records": "Directory FixedNodes NodeRecord",
        ".directory.redis": "RedisDirectory",
        ".driver.sandbox": "ClusterSandbox",
        ".node.agent": "NodeAgent",
        ".wire.handshake": "new_token",
    },
)
