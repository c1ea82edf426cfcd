"""Sockets that keep cells alive: a cell ends when the host's last copy closes.

A forked process would hold copies of them for as long as it lives.
"""

from __future__ import annotations

import contextlib
import socket
from weakref import WeakSet

from toolcell.core.storage.processes import in_each_child

_leases = WeakSet[socket.socket]()


def lease(sock: socket.socket) -> socket.socket:
    """Make every process forked from this one close its copy of a socket."""
    _leases.add(sock)
    return sock


def shut(sock: socket.socket) -> None:
    """End a connection; the other end sees it even if other processes have copies."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _close_copies() -> None:
    for sock in list(_leases):
        sock.close()


in_each_child(_close_copies)
