"""The way out of a cell: bytes between a loopback port and the host, unread.

Theory of operation. The relay listens where the proxy variables of a program lead
to. Each connection there is a stream of frames on the cell's channel. What its
bytes say and whom they may reach is the host's to judge; nothing is decided here.
A side sends no more of a stream than the other has asked for, so that a stream
that nobody reads waits alone: what is kept for it has its cap, and the channel is
never held up. The relay has one descriptor to wait for and never waits itself.
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
# Between two looks at the deadline and at the host.
_EVENTS_AT_ONCE = 8


class _Connection:
    """One connection of a program.

    Args:
        number: Its name on the channel.
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
        """Return the events to wait for."""
        hears = not self.last_sent and (self.credit > 0 or self.host_closed)
        return (select.EPOLLIN if hears else 0) | (
            select.EPOLLOUT if self.unsent else 0
        )

    def push(self) -> None:
        """Give the program what waits for it. Raises OSError if it is gone."""
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
    """The connections of one cell's programs.

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
        """Readable when `pump` has something to do."""
        return self._epoll.fileno()

    def variables(self, without: str) -> dict[str, str]:
        """Return the environment that leads programs here.

        Args:
            without: The hosts that they reach without the proxy.
        """
        url = f"http://{_ADDRESS}:{self._listener.getsockname()[1]}"
        found = {"NODE_USE_ENV_PROXY": "1"}
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            found[name] = found[name.upper()] = url
        found["no_proxy"] = found["NO_PROXY"] = without
        return found

    def begin(self, connections: int) -> None:
        """Serve a run that may make so many connections."""
        self._left = connections

    def pump(self) -> None:
        """Move what can move now."""
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
            # No descriptor is left, until a stream ends.
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
        """Pass on what a program sent. Raises OSError if it is gone."""
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
        """Take what the host says of a stream; of one that is gone nothing counts."""
        kind, stream = frame.header["type"], self._streams.get(frame.header["id"])
        if stream is None:
            return
        if kind == "net_data":
            stream.unsent += frame.payload
        elif kind == "net_credit":
            stream.credit += frame.header["bytes"]
        else:
            stream.last_came = True
            # What it still says finds no reader, but is heard: a closed door would
            # take from the program what it has not read yet.
            stream.host_closed = kind == "net_close"
        try:
            stream.push()
        except OSError:
            self._break(stream)
        else:
            self._settle(stream)

    def _settle(self, stream: _Connection) -> None:
        """Ask the host for more, wait for the right events, or end the stream."""
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
        # Without a mask epoll would still tell of the end, over and over.
        if not wanted:
            self._epoll.unregister(fd)
        elif not stream.mask:
            self._epoll.register(fd, wanted)
        else:
            self._epoll.modify(fd, wanted)
        stream.mask = wanted

    def _break(self, stream: _Connection) -> None:
        """The program left in the middle."""
        if not stream.host_closed:
            self._channel.send(encode({"type": "net_close", "id": stream.number}))
        self._drop(stream)

    def _drop(self, stream: _Connection) -> None:
        del self._streams[stream.number]
        del self._by_fd[stream.sock.fileno()]
        # Closing takes it out of the epoll, too.
        stream.sock.close()
        self._listen(True)

    def close_streams(self) -> None:
        """End with a run: the next one finds the door, and nobody in it."""
        for stream in list(self._streams.values()):
            self._drop(stream)
