"""What a node says, which may be nonsense."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from pydantic import ValidationError

from toolcell.core import CellLostError, ConfigError

from ..wire.message import WireError

NONSENSE = (
    AttributeError,
    ConfigError,
    IndexError,
    KeyError,
    OverflowError,
    TypeError,
    ValidationError,
    ValueError,
    WireError,
)
"""What reading a message raises that no node sends."""


class _Peer(Protocol):
    def nonsense(self, error: Exception) -> CellLostError:
        """Give the link up, since the other end breaks the protocol; return why."""
        ...


@contextmanager
def told_by(peer: _Peer) -> Iterator[None]:
    """Read what a node says; what cannot be read ends its link.

    Args:
        peer: The link, or an exchange on it.

    Raises:
        CellLostError: It is nonsense.
    """
    try:
        yield
    except NONSENSE as error:
        raise peer.nonsense(error) from None
