"""Carries bytes between a loopback port of a cell and the host, unread.

Theory of operation. The relay listens at the address in the proxy variables of a
program. Each connection there becomes a stream of frames on the cell's channel. The
host alone interprets the bytes and decides whom they may reach. Each side sends no
more of a stream than the other has given credit for. So a stream that is not read
blocks only itself: its buffer is bounded, and the channel stays free. The relay never
blocks; its callers wait for its one descriptor.
"""

from __future__ import annotations

import _socket
import os
import select

from ..wire.contract import PIECE_BYTES, WINDOW_BYTES
from ..wire.frames import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..wire.channel import SupervisorChannel
    from ..wire.frames import Frame


MAX_STREAMS = 128
"""Connections at once. When it is reached others wait for one to end."""

_ADDRESS = "127.0.0.1"
# The deadline and the host are looked at in between.
_EVENTS_AT_ONCE = 8


class _Connection:
    """One connection of a program.

    Args:
        number: Identifies it on the channel.
        sock: Not blocking.
    """

    __slots__ = (
        "credit",
        "host_closed",
        "last_came",
        "last_sent",
        "mask",
        "number",
        "passed",
        "sock",
        "unsent",
    )

    def __init__(self, number: int, sock: _socket.socket) -> None:
        self.number = number
        self.sock = sock
        self.unsent = bytearray()
        self.credit = WINDOW_BYTES
        self.passed = 0
        self.last_sent = False
        self.last_came = False
        self.host_closed = False
        self.mask = 0

    def wanted(self) -> int:
        """Return the events to poll for."""
        hears = not self.last_sent and (self.credit > 0 or self.host_closed)
        return (select.EPOLLIN if hears else 0) | (
            select.EPOLLOUT if self.unsent else 0
        )

    def push(self) -> None:
        """Send buffered bytes to the program. Raises OSError if it is gone."""
        while self.unsent:
            try:
                sent = self.sock.send(self.unsent)
            except BlockingIOError:
                return
            del self.unsent[:sent]
            self.passed += sent
        if self.last_came:
            self.sock.shutdown(_socket.SHUT_WR)


class EgressRelay:
    """Accepts the connections of a cell's programs, and relays their bytes.

    It enforces `MAX_STREAMS` and the number of connections of a run. Neither is a
    security boundary, as the host counts for itself.

    Args:
        channel: Leads to the host.
    """

    def __init__(self, channel: SupervisorChannel) -> None:
        self._channel = channel
        self._streams: dict[int, _Connection] = {}
        self._by_fd: dict[int, _Connection] = {}
        self._opened = 0
        self._left = 0
        self._listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        self._listener.bind((_ADDRESS, 0))
        self._listener.listen(MAX_STREAMS)
        self._listener.setblocking(False)
        self._listens = False
        self._epoll = select.epoll()
        self._listen(True)

    @property
    def fd(self) -> int:
        """A descriptor that is readable when `pump` has something to do."""
        return self._epoll.fileno()

    def variables(self, without: str) -> dict[str, str]:
        """Return the environment variables that lead programs to this relay.

        Args:
            without: Hosts that programs reach without the proxy, for `no_proxy`.
        """
        url = f"http://{_ADDRESS}:{self._listener.getsockname()[1]}"
        found = {"NODE_USE_ENV_PROXY": "1"}
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            found[name] = found[name.upper()] = url
        found["no_proxy"] = found["NO_PROXY"] = without
        return found

    def begin(self, connections: int) -> None:
        """Start a run that may make at most `connections` connections."""
        self._left = connections

    def pump(self) -> None:
        """Accept, read and write as far as possible without blocking."""
        for fd, events in self._epoll.poll(0, _EVENTS_AT_ONCE):
            stream = self._by_fd.get(fd)
            if stream is None:
                self._accept()
                continue
            try:
                if events & select.EPOLLOUT:
                    stream.push()
                if events & ~select.EPOLLOUT:
                    self._take_in(stream)
            except OSError:
                self._break(stream)
            else:
                self._settle(stream)

    def _accept(self) -> None:
        try:
            fd = self._listener._accept()[0]  # type: ignore[attr-defined]
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            # There are no descriptors left until a stream ends.
            self._listen(False)
            return
        if not self._left:
            os.close(fd)
            return
        self._left -= 1
        sock = _socket.socket(fileno=fd)
        sock.setblocking(False)
        sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        self._opened += 1
        stream = self._streams[self._opened] = _Connection(self._opened, sock)
        self._by_fd[fd] = stream
        self._channel.send(encode({"type": "net_open", "id": stream.number}))
        self._settle(stream)
        self._listen(len(self._streams) < MAX_STREAMS)

    def _listen(self, wanted: bool) -> None:
        wanted = wanted and len(self._streams) < MAX_STREAMS
        if wanted and not self._listens:
            self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        elif self._listens and not wanted:
            self._epoll.unregister(self._listener.fileno())
        self._listens = wanted

    def _take_in(self, stream: _Connection) -> None:
        """Pass on bytes of a program. Raises OSError if it is gone."""
        room = PIECE_BYTES if stream.host_closed else min(stream.credit, PIECE_BYTES)
        if stream.last_sent or not room:
            return
        try:
            data = stream.sock.recv(room)
        except BlockingIOError:
            return
        stream.last_sent = not data
        if stream.host_closed:
            return
        if data:
            stream.credit -= len(data)
            self._channel.send(encode({"type": "net_data", "id": stream.number}, data))
        else:
            self._channel.send(encode({"type": "net_end", "id": stream.number}))

    def handle_frame(self, frame: Frame) -> None:
        """Handle a frame of the host; frames of closed streams are ignored."""
        kind, stream = frame.header["type"], self._streams.get(frame.header["id"])
        if stream is None:
            return
        if kind == "net_data":
            stream.unsent += frame.payload
        elif kind == "net_credit":
            stream.credit += frame.header["bytes"]
        else:
            stream.last_came = True
            # Its bytes are still read, and dropped: closing the socket now would take
            # from the program what it has not read yet.
            stream.host_closed = kind == "net_close"
        try:
            stream.push()
        except OSError:
            self._break(stream)
        else:
            self._settle(stream)

    def _settle(self, stream: _Connection) -> None:
        """Return credit to the host, poll for the right events, or end the stream."""
        if stream.last_came and stream.last_sent and not stream.unsent:
            self._drop(stream)
            return
        if stream.passed >= WINDOW_BYTES // 4 and not stream.last_came:
            header = {"type": "net_credit", "id": stream.number, "bytes": stream.passed}
            stream.passed = 0
            self._channel.send(encode(header))
        wanted, fd = stream.wanted(), stream.sock.fileno()
        if wanted == stream.mask:
            return
        # Even with an empty mask epoll would report a hang-up, again and again.
        if not wanted:
            self._epoll.unregister(fd)
        elif not stream.mask:
            self._epoll.register(fd, wanted)
        else:
            self._epoll.modify(fd, wanted)
        stream.mask = wanted

    def _break(self, stream: _Connection) -> None:
        """Tell the host that the program closed its connection early."""
        if not stream.host_closed:
            self._channel.send(encode({"type": "net_close", "id": stream.number}))
        self._drop(stream)

    def _drop(self, stream: _Connection) -> None:
        del self._streams[stream.number]
        del self._by_fd[stream.sock.fileno()]
        # Closing also removes it from the epoll.
        stream.sock.close()
        self._listen(True)

    def close_streams(self) -> None:
        """Close all streams at the end of a run; the port stays open for the next."""
        for stream in list(self._streams.values()):
            self._drop(stream)
