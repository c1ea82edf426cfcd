"""Calls of a program to the host, and the answers; never waits for either."""

from __future__ import annotations

import _socket

from .bridge import ANSWER, MAX_CALL_BYTES
from .frames import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .host_channel import Channel


_DIGITS = 8
_READ_BYTES = 65536


class CallRelay:
    """Passes whole messages on, unread: what they say is the program's word.

    Args:
        fd: The socket that leads to the program.
        channel: Leads to the host.
    """

    def __init__(self, fd: int, channel: Channel) -> None:
        self._sock = _socket.socket(fileno=fd)
        self._channel = channel
        self._inbox = bytearray()
        self._outbox = bytearray()

    def take_in(self) -> bool:
        """Read what the program sent; False if it will send no more that counts."""
        try:
            data = self._sock.recv(_READ_BYTES, _socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._inbox += data
        while len(self._inbox) >= _DIGITS:
            try:
                size = int(self._inbox[:_DIGITS], 16)
            except ValueError:
                return False
            if not 0 <= size <= MAX_CALL_BYTES:
                return False
            end = _DIGITS + size
            if len(self._inbox) < end:
                break
            self._channel.send(
                encode({"type": "call"}, bytes(self._inbox[_DIGITS:end]))
            )
            del self._inbox[:end]
        return bool(data)

    def answer(self, payload: bytes) -> None:
        """Send an answer on, as far as the program reads."""
        self._outbox += b"%s%08x%s" % (ANSWER, len(payload), payload)
        self.push()

    def push(self) -> bool:
        """Send what still waits; True if something is left."""
        while self._outbox:
            try:
                sent = self._sock.send(self._outbox, _socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except OSError:
                self._outbox.clear()
                break
            del self._outbox[:sent]
        return False

    def close(self) -> None:
        """Leave the socket to its owner."""
        self._sock.detach()
