"""Sockets that cells live by: when the host's last copy closes, the cell ends.

A forked process would hold copies of them for as long as it lives.
"""

from __future__ import annotations

import contextlib
import socket
from weakref import WeakSet

from toolcell.core.storage.forks import in_each_child

_leases = WeakSet[socket.socket]()


def lease(sock: socket.socket) -> socket.socket:
    """Have every process that is forked from here close its copy of a socket."""
    _leases.add(sock)
    return sock


def end(sock: socket.socket) -> None:
    """Close a socket; the other end sees it whoever else has a copy."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def _close_copies() -> None:
    for sock in list(_leases):
        sock.close()


in_each_child(_close_copies)
