"""Ports that programs of a cell connect to, and where the connections come out."""

from __future__ import annotations

import _socket
import os

from ..wire.contract import ASKED, LOOPBACK

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
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
    """A port of the loopback of a cell that has its own network.

    Args:
        waiting: Connections that may wait to be accepted.
        address: The address that it is at.
        number: The port; 0 for any.

    Raises:
        OSError: Somebody else listens there, or the port is not for programs.
    """

    def __init__(self, waiting: int, address: str = LOOPBACK, number: int = 0) -> None:
        self._socket = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        try:
            # Connections of an earlier run may linger.
            self._socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
            self._socket.bind((address, number))
            self._socket.listen(waiting)
        except OSError:
            self._socket.close()
            raise
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
        random = int.from_bytes(os.urandom(4), "big")
        self.number = _FIRST_NUMBER + random % (65_536 - _FIRST_NUMBER)
        self._socket = ask(notifier, b"%d" % self.number)
        self.fileno, self.close = self._socket.fileno, self._socket.close

    def accept(self) -> int:
        return take(self._socket)


def ask(notifier: int, message: bytes) -> socket.socket:
    """Send the notifier a message; return where its sockets come. Raises OSError."""
    import socket

    from ..kernel.descriptors import send_fds

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with theirs, socket.socket(fileno=os.dup(notifier)) as channel:
        send_fds(channel, message, [theirs.fileno()])
    return ours


def ask_for_server(notifier: int, port: int) -> socket.socket:
    """Ask for a connection to a server of the cell's programs. Raises OSError."""
    return ask(notifier, ASKED + b"%d" % port)


def take(source: socket.socket) -> int:
    """Return the descriptor of a socket that has come from the notifier.

    Raises:
        ConnectionAbortedError: None came.
        OSError: There are no descriptors left.
    """
    from ..kernel.descriptors import receive_fds

    fds = receive_fds(source, _MAX_MESSAGE, 1)[1]
    if not fds:
        raise ConnectionAbortedError
    return fds[0]
