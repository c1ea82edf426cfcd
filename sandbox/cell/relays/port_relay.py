"""Leads connections of the host to servers inside the cell.

Theory of operation. The host names a port; this relay connects to it on the cell's own
loopback interface, and passes bytes in frames of the cell's channel. The cell cannot
open a connection this way, and nothing listens outside of it.
"""

from __future__ import annotations

import _socket
import errno
import os
import select

from .streams import MAX_STREAMS, RelayedStream, StreamRelay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..wire.frames import Frame

# A server that was told "localhost" may listen at the second one alone.
_ADDRESSES = ((_socket.AF_INET, "127.0.0.1"), (_socket.AF_INET6, "::1"))
_REASONS = {errno.ECONNREFUSED: "missing", errno.EAGAIN: "too_many"}


class _Attempt:
    """A connection that is not made yet.

    Args:
        number: Identifies it on the channel.
        port: The port to connect to.
    """

    __slots__ = ("addresses", "number", "port", "sock")

    def __init__(self, number: int, port: int) -> None:
        self.number = number
        self.port = port
        self.addresses = list(_ADDRESSES)
        self.sock: _socket.socket | None = None


class PortRelay(StreamRelay):
    """Connects to ports of this cell's loopback, and relays the bytes.

    Args:
        send: Sends a frame towards the host.
        own: True if the loopback interface is the cell's own. Else nothing listens
            there: its ports are the machine's.
    """

    def __init__(self, send: Callable[[bytes], None], *, own: bool = True) -> None:
        super().__init__(send, "port")
        self._own = own
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
        if not self._own:
            self._fail(attempt, errno.ECONNREFUSED)
            return
        if len(self._attempts) + len(self._streams) >= MAX_STREAMS:
            self._fail(attempt, errno.EAGAIN)
            return
        self._try_next(attempt)

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
                attempt.sock = sock
                self._attempts[sock.fileno()] = attempt
                self.epoll.register(sock.fileno(), select.EPOLLOUT)
                return
            sock.close()
            code = code if failure == errno.EADDRNOTAVAIL else failure
        self._fail(attempt, code)

    def _fail(self, attempt: _Attempt, code: int) -> None:
        reason = _REASONS.get(code, "failed")
        self.say("failed", attempt.number, why=os.strerror(code), reason=reason)

    def serve_other(self, fd: int) -> None:
        """Take a connection that was made or refused."""
        attempt = self._attempts.pop(fd)
        assert attempt.sock is not None
        self.epoll.unregister(fd)
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
            if attempt.number == number and attempt.sock is not None:
                del self._attempts[fd]
                attempt.sock.close()

    def close(self, stream: RelayedStream) -> None:
        """Note that the host is done: a server may go on sending for ever."""
        super().close(stream)
        stream.last_sent = True
