"""Calls of the host by processes that are handed one socket: a bash program, a command.

Theory of operation. They all hold the same end of a socket, the door, so none of them
could tell its answer there from another's. Each writes one byte for each call that it
wants to make, and reads a socket for that call alone. Whoever has the door got it from
the run or the command that it is for: nothing else proves who calls, and no process
that another run left behind has it. With the run the door and all calls at it end.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket

from ..kernel.descriptors import send_fds
from ..wire.contract import MAX_CALL_BYTES
from ..wire.frames import CALLS_AHEAD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

TOOLS = "TOOLCELL_TOOLS"
"""The variable that names the descriptor of the door."""

# Scripts and shells use low numbers themselves.
_HIGH = 100
_READ_BYTES = 65536
_DIGITS = 8
_ENTER = b"!"
# Of an answer, as the host writes it.
_NUMBER = b'{"id":'


def offered(fd: int) -> dict[str, str]:
    """Let what this process becomes have its end of a door.

    Returns:
        The environment variable that says which descriptor it is.
    """
    try:
        fd = os.dup2(fd, _HIGH)
    except OSError:
        # So many files may not be open.
        os.set_inheritable(fd, True)
    return {TOOLS: str(fd)}


class CallDoor:
    """Hands out sockets for calls, and passes on what comes there, unread.

    Args:
        fd: Our end of the door, which stays the caller's.
        pass_on: Sends a number in eight hexadecimal digits, and the text of a call, to
            the host.
        bounds: `calls_at_once`, the calls that the host serves at once: of twice as
            many processes each may have a socket, and others wait. `max_calls`, those
            of the whole run: further ones are refused here.
    """

    def __init__(
        self, fd: int, pass_on: Callable[[bytes], None], bounds: dict[str, Any]
    ) -> None:
        self._door = socket.socket(fileno=os.dup(fd))
        self._door.setblocking(False)
        self._pass_on = pass_on
        self._most = CALLS_AHEAD * bounds["calls_at_once"]
        self._max_calls = self._left = bounds["max_calls"]
        self._made = 0
        self._callers: dict[int, _Caller] = {}
        self._asked: dict[int, _Caller] = {}
        self._epoll = select.epoll()
        self._is_open = True
        self._is_watched = False
        self._watch_door()

    @property
    def fd(self) -> int:
        """A descriptor that is readable when `pump` has something to do."""
        return self._epoll.fileno()

    def pump(self) -> None:
        """Read and write as far as possible without blocking."""
        for fd, events in self._epoll.poll(0):
            if fd == self._door.fileno():
                self._let_in()
            elif events & select.EPOLLOUT:
                self._write(self._callers[fd])
            else:
                self._read(self._callers[fd])
        self._watch_door()

    def answer(self, payload: bytes) -> None:
        """Write the host's answer to the process that made the call."""
        end = payload.index(b",")
        caller = self._asked.pop(int(payload[len(_NUMBER) : end]))
        self._reply(caller, payload)
        self._watch_door()

    def close(self) -> None:
        """End all calls."""
        for caller in [*self._callers.values()]:
            self._drop(caller)
        self._epoll.close()
        self._door.close()

    def _watch_door(self) -> None:
        """Let nobody else in while all have a socket who may."""
        watches = self._is_open and len(self._callers) < self._most
        if watches == self._is_watched:
            return
        self._is_watched = watches
        if watches:
            self._epoll.register(self._door, select.EPOLLIN)
        else:
            self._epoll.unregister(self._door)

    def _let_in(self) -> None:
        try:
            asked = len(self._door.recv(self._most - len(self._callers)))
        except BlockingIOError:
            return
        except OSError:
            asked = 0
        self._is_open = asked > 0
        for _ in range(asked):
            self._hand_out()

    def _hand_out(self) -> None:
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                self._admit(ours, theirs)
        except OSError:
            # It learns that there is none.
            with contextlib.suppress(OSError):
                self._door.send(_ENTER)

    def _admit(self, ours: socket.socket, theirs: socket.socket) -> None:
        ours.setblocking(False)
        try:
            self._epoll.register(ours, select.EPOLLIN)
            send_fds(self._door, _ENTER, [theirs.fileno()])
        except OSError:
            ours.close()
            raise
        self._callers[ours.fileno()] = _Caller(ours)

    def _read(self, caller: _Caller) -> None:
        try:
            data = caller.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        caller.inbox += data
        try:
            text = caller.call()
        except ValueError:
            data = b""
        if not data:
            return self._drop(caller)
        if text is not None:
            self._ask(caller, text)

    def _ask(self, caller: _Caller, text: bytes) -> None:
        """Pass a call on. Its place stays taken until the host has answered."""
        self._unwatch(caller)
        self._made += 1
        if not self._left:
            why = "this run has made its %d calls" % self._max_calls
            error = {"code": "too_many", "message": why}
            return self._reply(caller, json.dumps({"error": error}).encode())
        self._left -= 1
        self._asked[self._made] = caller
        self._pass_on(b"%08x%s" % (self._made, text))

    def _reply(self, caller: _Caller, payload: bytes) -> None:
        caller.unsent = memoryview(b"%08x%s" % (len(payload), payload))
        self._write(caller)

    def _write(self, caller: _Caller) -> None:
        try:
            while caller.unsent:
                caller.unsent = caller.unsent[caller.sock.send(caller.unsent) :]
        except BlockingIOError:
            if not caller.is_watched:
                caller.is_watched = True
                self._epoll.register(caller.sock, select.EPOLLOUT)
            return
        except OSError:
            # Nobody waits for it.
            pass
        self._drop(caller)

    def _unwatch(self, caller: _Caller) -> None:
        # Before it is closed: where another process has it, too, it would stay.
        if caller.is_watched:
            caller.is_watched = False
            self._epoll.unregister(caller.sock)

    def _drop(self, caller: _Caller) -> None:
        self._unwatch(caller)
        del self._callers[caller.sock.fileno()]
        caller.sock.close()


class _Caller:
    """Our end of the socket for one call, and how far the call has come."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox = bytearray()
        self.unsent = memoryview(b"")
        self.is_watched = True

    def call(self) -> bytes | None:
        """Return the text of the call, once it is complete.

        Raises:
            ValueError: What came is no call, or too large.
        """
        if len(self.inbox) < _DIGITS:
            return None
        size = int(self.inbox[:_DIGITS], 16)
        if not 0 <= size <= MAX_CALL_BYTES:
            raise ValueError
        if len(self.inbox) < _DIGITS + size:
            return None
        return bytes(self.inbox[_DIGITS : _DIGITS + size])
