"""Ports that programs of a cell connect to, and where the connections come out."""

from __future__ import annotations

import _socket
import os

from ..wire.contract import LOOPBACK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Port(Protocol):
        """The place where connections of programs come out. Nothing here blocks."""

        number: int

        def fileno(self) -> int:
            """Return a descriptor that is readable when there is a connection."""

        def accept(self) -> int:
            """Return the descriptor of a connection. Raises OSError."""

        def close(self) -> None:
            """Take no more connections."""


_FIRST_NUMBER = 1024
_MAX_MESSAGE = 16


class ListeningPort:
    """A port of the loopback of a cell that has a network of its own.

    Args:
        waiting: Connections that may wait to be accepted.
    """

    def __init__(self, waiting: int) -> None:
        self._socket = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        self._socket.bind((LOOPBACK, 0))
        self._socket.listen(waiting)
        self._socket.setblocking(False)
        self.number: int = self._socket.getsockname()[1]
        self.fileno, self.close = self._socket.fileno, self._socket.close

    def accept(self) -> int:
        return int(self._socket._accept()[0])  # type: ignore[attr-defined]


class NotifiedPort:
    """A port that nothing listens on, so that nobody else on the machine can come.

    The notifier connects the cell's programs that want to go there.

    Args:
        notifier: The socket to it.
    """

    def __init__(self, notifier: int) -> None:
        import socket

        from ..kernel.descriptors import send_fds

        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        random = int.from_bytes(os.urandom(4), "big")
        self.number = _FIRST_NUMBER + random % (65_536 - _FIRST_NUMBER)
        with theirs, socket.socket(fileno=os.dup(notifier)) as channel:
            send_fds(channel, b"%d" % self.number, [theirs.fileno()])
        self.fileno, self.close = self._socket.fileno, self._socket.close

    def accept(self) -> int:
        from ..kernel.descriptors import receive_fds

        fds = receive_fds(self._socket, _MAX_MESSAGE, 1)[1]
        if not fds:
            raise ConnectionAbortedError
        return fds[0]
