"""Errors of nodes that break the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from pydantic import ValidationError

from toolcell.core import CellLostError, ConfigError

from ..wire.message import WireError

PROTOCOL_ERRORS = (
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
"""Errors of reading a message that no node sends."""


class _Peer(Protocol):
    def protocol_error(self, error: Exception) -> CellLostError:
        """Give the link up, since the other end breaks the protocol; return why."""
        ...


@contextmanager
def closing_link_on_error(peer: _Peer) -> Iterator[None]:
    """Read what a node says; what cannot be read ends its link.

    Args:
        peer: The link, or an exchange on it.

    Raises:
        CellLostError: It breaks the protocol.
    """
    try:
        yield
    except PROTOCOL_ERRORS as error:
        raise peer.protocol_error(error) from None
