"""Calls of a program to the host, and the answers; never waits for either."""

from __future__ import annotations

import os

from .bridge import ANSWER, MAX_CALL_BYTES
from .frames import CALLS_AHEAD, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .host_channel import Channel
    from .outbox import Outbox


_DIGITS = 8
_READ_BYTES = 65536


class CallRelay:
    """Passes whole messages on, unread: what they say is the program's word.

    Args:
        fd: The socket that leads to the program, not blocking.
        outbox: What is written to it.
        channel: Leads to the host.
        at_once: How many calls the host has at work at once. Only `CALLS_AHEAD`
            times as many are passed on before the first is answered.
    """

    def __init__(self, fd: int, outbox: Outbox, channel: Channel, at_once: int) -> None:
        self._fd = fd
        self._outbox = outbox
        self._channel = channel
        self._most = CALLS_AHEAD * at_once
        self._open = 0
        self._ended = False
        self._inbox = bytearray()

    @property
    def listens(self) -> bool:
        """Whether there is room for what the program says next."""
        return not self._ended and self._open < self._most

    def take_in(self) -> None:
        """Read what the program sent."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._ended = not data
        self._inbox += data
        self._pass_on()

    def _pass_on(self) -> None:
        while len(self._inbox) >= _DIGITS and self.listens:
            try:
                size = int(self._inbox[:_DIGITS], 16)
            except ValueError:
                size = -1
            if not 0 <= size <= MAX_CALL_BYTES:
                # Nothing after it counts.
                self._ended = True
                return
            end = _DIGITS + size
            if len(self._inbox) < end:
                return
            self._open += 1
            call = bytes(self._inbox[_DIGITS:end])
            self._channel.send(encode({"type": "call"}, call))
            del self._inbox[:end]

    def answer(self, payload: bytes) -> None:
        """Send an answer on, as far as the program reads."""
        self._open -= 1
        self._outbox.add(b"%s%08x%s" % (ANSWER, len(payload), payload))
        self._outbox.push()
        self._pass_on()


def forget_calls(fd: int) -> None:
    """Drop what was called before this run: it is not of its calls."""
    try:
        while os.read(fd, _READ_BYTES):
            pass
    except OSError:
        pass
