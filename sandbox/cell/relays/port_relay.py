"""Leads connections of the host to servers inside the cell.

Theory of operation. The host names a port; this relay connects to it on the cell's own
loopback interface, and passes bytes in frames of the cell's channel. Where the cell has
none the notifier connects, to what programs of this cell listen on. The cell cannot
open a connection this way.
"""

from __future__ import annotations

import _socket
import errno
import os
import select

from .ports import ask_for_server, take
from .streams import MAX_STREAMS, RelayedStream, StreamRelay

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any, Callable

    from ..wire.frames import Frame

# A server that was given "localhost" may listen at the second one alone.
_ADDRESSES = ((_socket.AF_INET, "127.0.0.1"), (_socket.AF_INET6, "::1"))
_REASONS = {errno.ECONNREFUSED: "missing", errno.EAGAIN: "too_many"}


class _Attempt:
    """A connection that is not made yet.

    Args:
        number: Identifies it on the channel.
        port: The port to connect to.
    """

    __slots__ = ("addresses", "asked", "number", "port", "sock")

    def __init__(self, number: int, port: int) -> None:
        self.number = number
        self.port = port
        self.addresses = list(_ADDRESSES)
        self.asked: socket.socket | None = None
        self.sock: _socket.socket | None = None

    def close(self) -> None:
        for sock in (self.asked, self.sock):
            if sock is not None:
                sock.close()


class PortRelay(StreamRelay):
    """Connects to ports of this cell's loopback, and relays the bytes.

    Args:
        send: Sends a frame towards the host.
        notifier: The socket to the notifier of a cell without its own network;
            else -1.
    """

    def __init__(self, send: Callable[[bytes], None], notifier: int = -1) -> None:
        super().__init__(send, "port")
        self._notifier = notifier
        self._attempts: dict[int, _Attempt] = {}

    def handle_frame(self, frame: Frame) -> None:
        """Handle a frame of the host."""
        header: dict[str, Any] = frame.header
        if header["type"] == "port_open":
            self._open(_Attempt(header["id"], header["port"]))
            return
        if header["type"] == "port_close":
            self._give_up(header["id"])
        super().handle_frame(frame)

    def _open(self, attempt: _Attempt) -> None:
        if len(self._attempts) + len(self._streams) >= MAX_STREAMS:
            self._fail(attempt, errno.EAGAIN)
        elif self._notifier < 0:
            self._try_next(attempt)
        else:
            attempt.asked = ask_for_server(self._notifier, attempt.port)
            self._attempts[attempt.asked.fileno()] = attempt
            self.epoll.register(attempt.asked.fileno(), select.EPOLLIN)

    def _try_next(self, attempt: _Attempt, code: int = errno.ECONNREFUSED) -> None:
        """Connect to the next address, or report why the last one failed."""
        while attempt.addresses:
            family, address = attempt.addresses.pop(0)
            try:
                sock = _socket.socket(family, _socket.SOCK_STREAM)
            except OSError:
                # There is no IPv6 here: what the first address said holds.
                continue
            sock.setblocking(False)
            failure = sock.connect_ex((address, attempt.port))
            if failure in (0, errno.EINPROGRESS):
                self._await(attempt, sock)
                return
            sock.close()
            code = code if failure == errno.EADDRNOTAVAIL else failure
        self._fail(attempt, code)

    def _await(self, attempt: _Attempt, sock: _socket.socket) -> None:
        attempt.sock = sock
        self._attempts[sock.fileno()] = attempt
        self.epoll.register(sock.fileno(), select.EPOLLOUT)

    def _take_asked(self, attempt: _Attempt, asked: socket.socket) -> None:
        """Take the connection that the notifier made, if it did."""
        attempt.asked = None
        try:
            fd = take(asked)
        except OSError:
            self._fail(attempt, errno.ECONNREFUSED)
        else:
            self._await(attempt, _socket.socket(fileno=fd))
        finally:
            asked.close()

    def _fail(self, attempt: _Attempt, code: int) -> None:
        reason = _REASONS.get(code, "failed")
        self.say("failed", attempt.number, why=os.strerror(code), reason=reason)

    def serve_other(self, fd: int) -> None:
        """Take a connection that was made or refused."""
        attempt = self._attempts.pop(fd)
        self.epoll.unregister(fd)
        if attempt.asked is not None:
            self._take_asked(attempt, attempt.asked)
            return
        assert attempt.sock is not None
        code = attempt.sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
        if code:
            attempt.sock.close()
            self._try_next(attempt, code)
            return
        stream = self.add(attempt.number, attempt.sock)
        self.say("opened", stream.number)
        self.settle(stream)

    def _give_up(self, number: int) -> None:
        for fd, attempt in list(self._attempts.items()):
            if attempt.number == number:
                del self._attempts[fd]
                self.epoll.unregister(fd)
                attempt.close()

    def close(self, stream: RelayedStream) -> None:
        """Note that the host is done: a server may go on sending for ever."""
        super().close(stream)
        stream.last_sent = True
