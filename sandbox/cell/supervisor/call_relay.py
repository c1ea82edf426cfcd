"""Passes calls of a program to the host, and the answers back, without blocking."""

from __future__ import annotations

import json
import os

from ..kernel.descriptors import read_from
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
    """Passes on whole messages unread, as nothing in them can be trusted.

    A message is its size and its number, of eight hexadecimal digits each, and a text.
    Calls past the limit of a run are refused here, at the cell's own expense.

    Args:
        fd: The socket that leads to the program, not blocking.
        write_queue: Messages to the program.
        channel: Leads to the host.
        request: The request to run. Of `calls_at_once`, the calls that the host serves
            at once, `CALLS_AHEAD` times as many are passed on before the first answer.
            `max_calls` is the number of calls that the run may make.
        caller: The only process whose calls are taken; 0 for all that hold the socket.
    """

    def __init__(
        self,
        fd: int,
        write_queue: WriteQueue,
        channel: SupervisorChannel,
        request: dict[str, Any],
        caller: int = 0,
    ) -> None:
        self._fd = fd
        self._caller = caller
        self._write_queue = write_queue
        self._channel = channel
        self._max_open = CALLS_AHEAD * request["calls_at_once"]
        self._max_calls = self._left = request["max_calls"]
        self._open = 0
        self._ended = False
        self._inbox = bytearray()

    @property
    def listens(self) -> bool:
        """True if another call of the program can be passed on."""
        return (
            not self._ended
            and self._open < self._max_open
            and not self._write_queue.pending
        )

    def take_in(self) -> None:
        """Read bytes of the program, without blocking."""
        try:
            data = read_from(self._fd, _READ_BYTES, self._caller)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data is not None:
            self._ended = not data
            self._inbox += data

    def pass_on(self) -> None:
        """Send the complete calls to the host, until too many are unanswered."""
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
        """Return the number and text of the next complete call, if there is one."""
        text = 2 * _DIGITS
        if len(self._inbox) < text:
            return None
        try:
            size = int(self._inbox[:_DIGITS], 16)
            number = int(self._inbox[_DIGITS:text], 16)
        except ValueError:
            size = number = -1
        if not 0 <= size <= MAX_CALL_BYTES or number < 0:
            # After a malformed message none is read.
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
        """Pass an answer on; what the program does not read yet is queued."""
        self._open -= 1
        self._send(payload)
        self.pass_on()

    def _send(self, payload: bytes) -> None:
        self._write_queue.add(b"%s%08x%s" % (ANSWER, len(payload), payload))
        self._write_queue.push()


def forget_calls(fd: int) -> None:
    """Drop calls that were made before this run: they do not belong to it."""
    try:
        while os.read(fd, _READ_BYTES):
            pass
    except OSError:
        pass
