"""Names for other rooms and extensions; they are no promise."""

import typing

from toolcell.core.lazy_face import lazy_face as _lazy_face

if typing.TYPE_CHECKING:
    from .directory.records import Directory, NodeRecord
    from .driver.admin import ClusterAdmin, NodeStatus

__all__ = [
    "ClusterAdmin",
    "Directory",
    "NodeRecord",
    "NodeStatus",
]

__getattr__ = _lazy_face(
    __name__,
    {
        ".directory.records": "Directory NodeRecord",
        ".driver.admin": "ClusterAdmin NodeStatus",
    },
)
