"""Descriptors over Unix sockets, as Python 3.8 has them."""

from __future__ import annotations

import array
import socket
import struct


def send_fds(sock: socket.socket, data: bytes, fds: list[int]) -> None:
    """Send bytes with descriptors along. Raises OSError."""
    packed = array.array("i", fds)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)] if fds else []
    sock.sendmsg([data], rights)


def receive_fd(sock: socket.socket, size: int) -> tuple[bytes, int]:
    """Receive bytes and the descriptor that came along, or -1. Raises OSError."""
    data, ancillary, _, _ = sock.recvmsg(size, socket.CMSG_SPACE(4))
    for level, kind, packed in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            return data, struct.unpack("i", packed[:4])[0]
    return data, -1
