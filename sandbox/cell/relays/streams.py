"""Streams of bytes between sockets of a cell and frames of the host.

Each side sends no more of a stream than the other has given credit for. So a stream
that is not read blocks only itself: its buffer is bounded, and the channel stays free.
Nothing here blocks; a caller waits for one descriptor.
"""

from __future__ import annotations

import _socket
import select
from collections import deque
from itertools import islice

from ..wire.contract import CREDIT_BYTES, PIECE_BYTES, WINDOW_BYTES
from ..wire.frames import encode
from ..wire.views import drop_sent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from ..wire.frames import Frame

MAX_STREAMS = 128
"""Connections of one relay at once."""

# The deadline and the host are looked at in between.
_EVENTS_AT_ONCE = 8
_VIEWS_AT_ONCE = 16
_SMALL_BYTES = 4096


class RelayedStream:
    """One connection inside the cell.

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
        "shut",
        "sock",
        "unsent",
    )

    def __init__(self, number: int, sock: _socket.socket) -> None:
        self.number = number
        self.sock = sock
        self.unsent: deque[memoryview] = deque()
        self.credit = WINDOW_BYTES
        self.passed = 0
        self.last_sent = False
        self.last_came = False
        self.host_closed = False
        self.shut = False
        self.mask = 0

    def wanted(self) -> int:
        """Return the events to poll for."""
        reads = not self.last_sent and (self.credit > 0 or self.host_closed)
        return (select.EPOLLIN if reads else 0) | (
            select.EPOLLOUT if self.unsent else 0
        )

    def keep(self, data: bytes) -> None:
        """Buffer bytes for the program; small pieces as one, as each takes memory."""
        if self.unsent and len(self.unsent[-1]) + len(data) <= _SMALL_BYTES:
            data = bytes(self.unsent.pop()) + data
        self.unsent.append(memoryview(data))

    def push(self) -> None:
        """Send buffered bytes to the program. Raises OSError if it is gone."""
        while self.unsent:
            try:
                sent = self.sock.sendmsg(list(islice(self.unsent, _VIEWS_AT_ONCE)))
            except BlockingIOError:
                return
            self.passed += sent
            drop_sent(self.unsent, sent)
        # A second time it would fail once the program has ended its direction, too.
        if self.last_came and not self.shut:
            self.shut = True
            self.sock.shutdown(_socket.SHUT_WR)


class StreamRelay:
    """Relays the bytes of connections, by their numbers.

    Args:
        send: Sends a frame towards the host.
        family: The first word of the types of its frames.
        fields: Further fields of each of its frames.
    """

    def __init__(
        self, send: Callable[[bytes], None], family: str, **fields: object
    ) -> None:
        self.send = send
        self._family = family
        self._fields = fields
        self._streams: dict[int, RelayedStream] = {}
        self._by_fd: dict[int, RelayedStream] = {}
        self.epoll = select.epoll()

    @property
    def fd(self) -> int:
        """A descriptor that is readable when `pump` has something to do."""
        return self.epoll.fileno()

    @property
    def is_full(self) -> bool:
        """True while `MAX_STREAMS` connections are open."""
        return len(self._streams) >= MAX_STREAMS

    def say(self, word: str, number: int, data: bytes = b"", **fields: object) -> None:
        """Send a frame of this family towards the host."""
        kind = f"{self._family}_{word}"
        self.send(encode({"type": kind, "id": number, **self._fields, **fields}, data))

    def add(self, number: int, sock: _socket.socket) -> RelayedStream:
        """Relay a connected socket, which then belongs to this relay."""
        sock.setblocking(False)
        sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        stream = self._streams[number] = RelayedStream(number, sock)
        self._by_fd[sock.fileno()] = stream
        return stream

    def pump(self) -> None:
        """Read and write as far as possible without blocking."""
        for fd, events in self.epoll.poll(0, _EVENTS_AT_ONCE):
            stream = self._by_fd.get(fd)
            if stream is None:
                self.serve_other(fd)
                continue
            try:
                if events & select.EPOLLOUT:
                    stream.push()
                if events & ~select.EPOLLOUT:
                    self._take_in(stream)
            except OSError:
                self._break(stream)
            else:
                self.settle(stream)

    def serve_other(self, fd: int) -> None:
        """Serve a descriptor of the epoll that is no stream's."""

    def _take_in(self, stream: RelayedStream) -> None:
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
            self.say("data", stream.number, data)
        else:
            self.say("end", stream.number)

    def handle_frame(self, frame: Frame) -> None:
        """Handle a frame of the host; frames of closed streams are ignored."""
        stream = self._streams.get(frame.header["id"])
        if stream is None:
            return
        word = frame.header["type"].rpartition("_")[2]
        if word == "data":
            stream.keep(frame.payload)
        elif word == "credit":
            stream.credit += frame.header["bytes"]
        else:
            stream.last_came = True
            if word == "close":
                self.close(stream)
        try:
            stream.push()
        except OSError:
            self._break(stream)
        else:
            self.settle(stream)

    def close(self, stream: RelayedStream) -> None:
        """Note that the host is done with a stream, which ends when it has sent all."""
        # Its bytes are still read, and dropped: closing the socket now would take
        # from the program what it has not read yet.
        stream.host_closed = True

    def settle(self, stream: RelayedStream) -> None:
        """Return credit to the host, poll for the right events, or end the stream."""
        if stream.last_came and stream.last_sent and not stream.unsent:
            self.drop(stream)
            return
        if stream.passed >= CREDIT_BYTES and not stream.last_came:
            passed, stream.passed = stream.passed, 0
            self.say("credit", stream.number, bytes=passed)
        wanted, fd = stream.wanted(), stream.sock.fileno()
        if wanted == stream.mask:
            return
        # Even with an empty mask epoll would report a hang-up, again and again.
        if not wanted:
            self.epoll.unregister(fd)
        elif not stream.mask:
            self.epoll.register(fd, wanted)
        else:
            self.epoll.modify(fd, wanted)
        stream.mask = wanted

    def _break(self, stream: RelayedStream) -> None:
        """Tell the host that the program closed its connection early."""
        if not stream.host_closed:
            self.say("close", stream.number)
        self.drop(stream)

    def drop(self, stream: RelayedStream) -> None:
        """Forget a stream and close its socket."""
        del self._streams[stream.number]
        del self._by_fd[stream.sock.fileno()]
        # It would be reported for as long as another process has it open.
        if stream.mask:
            self.epoll.unregister(stream.sock.fileno())
        stream.sock.close()

    def close_streams(self) -> None:
        """Close all streams."""
        for stream in list(self._streams.values()):
            self.drop(stream)
