"""Calls of a program to the host, and the answers; never waits for either."""

from __future__ import annotations

import json
import os

from ..wire.contract import ANSWER, MAX_CALL_BYTES
from ..wire.frames import CALLS_AHEAD, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..wire.channel import SupervisorChannel
    from .write_queue import WriteQueue


_DIGITS = 8
_READ_BYTES = 65536


class CallRelay:
    """Passes whole messages on, unread: what they say is the program's claim.

    A message is its size and its number, of eight digits each, and a text. Calls past
    the limit of a run are refused here: they cost the cell's own share, and the host
    nothing.

    Args:
        fd: The socket that leads to the program, not blocking.
        write_queue: What is written to it.
        channel: Leads to the host.
        request: Says how many calls the run may make, and how many the host has at
            work at once. Only `CALLS_AHEAD` times as many are passed on before the
            first is answered.
    """

    def __init__(
        self,
        fd: int,
        write_queue: WriteQueue,
        channel: SupervisorChannel,
        request: dict[str, Any],
    ) -> None:
        self._fd = fd
        self._write_queue = write_queue
        self._channel = channel
        self._max_open = CALLS_AHEAD * request["calls_at_once"]
        self._max_calls = self._left = request["max_calls"]
        self._open = 0
        self._ended = False
        self._inbox = bytearray()

    @property
    def listens(self) -> bool:
        """Whether there is room for what the program says next."""
        return (
            not self._ended
            and self._open < self._max_open
            and not self._write_queue.pending
        )

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

    def pass_on(self) -> None:
        """Send the calls that are there to the host, as far as there is room."""
        while self.listens:
            call = self._next()
            if call is None:
                return
            number, text = call
            if self._left:
                self._left -= 1
                self._open += 1
                self._channel.send(encode({"type": "call"}, b"%08x" % number + text))
            else:
                self._refuse(number)

    def _next(self) -> tuple[int, bytes] | None:
        """Return the number and text of a call that is there as a whole."""
        text = 2 * _DIGITS
        if len(self._inbox) < text:
            return None
        try:
            size = int(self._inbox[:_DIGITS], 16)
            number = int(self._inbox[_DIGITS:text], 16)
        except ValueError:
            size = number = -1
        if not 0 <= size <= MAX_CALL_BYTES or number < 0:
            # Nothing after it counts.
            self._ended = True
            return None
        end = text + size
        if len(self._inbox) < end:
            return None
        call = number, bytes(self._inbox[text:end])
        del self._inbox[:end]
        return call

    def _refuse(self, number: int) -> None:
        why = "this run has made its %d calls" % self._max_calls
        error = {"code": "too_many", "message": why}
        self._send(json.dumps({"id": number, "error": error}).encode())

    def answer(self, payload: bytes) -> None:
        """Send an answer on, as far as the program reads."""
        self._open -= 1
        self._send(payload)
        self.pass_on()

    def _send(self, payload: bytes) -> None:
        self._write_queue.add(b"%s%08x%s" % (ANSWER, len(payload), payload))
        self._write_queue.push()


def forget_calls(fd: int) -> None:
    """Drop what was called before this run: it is not of its calls."""
    try:
        while os.read(fd, _READ_BYTES):
            pass
    except OSError:
        pass
