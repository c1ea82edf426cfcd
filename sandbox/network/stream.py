"""The host's end of a program's connection, and non-blocking sockets."""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from typing import Any

import anyio

from ..cell.wire.contract import CREDIT_BYTES, PIECE_BYTES, WINDOW_BYTES
from ..cell.wire.frames import FrameError
from .types import SendFrame

_TURN_AWAY_SECONDS = 1.0
_WENT_AWAY = "the program went away"


class CellStream:
    """One connection of a program: bytes in both directions, with flow control.

    The cell sends no more than `WINDOW_BYTES` ahead of `receive`, and `send` waits for
    the program to read, so neither side buffers more than a window.

    Args:
        number: Identifies the connection on the channel.
        send_frame: Sends a frame to the cell.
        family: The first word of the types of its frames.
    """

    def __init__(self, number: int, send_frame: SendFrame, family: str = "net") -> None:
        self.number = number
        self._family = family
        self._send_frame = send_frame
        self._inbox: deque[bytes] = deque()
        self._kept = 0
        self._taken = 0
        self._last_came = False
        self._broken = ""
        self._credit = WINDOW_BYTES
        self._changed = anyio.Event()

    def take(self, kind: str, header: dict[str, Any], payload: bytes) -> None:
        """Handle a frame of this stream.

        Raises:
            FrameError: No cell of ours sends such a frame.
        """
        word = kind.removeprefix(f"{self._family}_")
        if word == "data":
            self._kept += len(payload)
            if self._kept > WINDOW_BYTES or self._last_came:
                raise FrameError("more of a stream than was asked for")
            self._inbox.append(payload)
        elif word == "credit":
            more = header["bytes"]
            if type(more) is not int or not 0 < more <= WINDOW_BYTES - self._credit:
                raise FrameError("more credit than was used")
            self._credit += more
        elif word == "end":
            self._last_came = True
        elif word == "close":
            self._broken = _WENT_AWAY
        else:
            raise FrameError(f"unexpected frame {kind[:40]!r}")
        self._changed.set()

    def break_off(self, why: str) -> None:
        """End both directions here: who waits gets ConnectionResetError."""
        self._broken = self._broken or why
        self._changed.set()

    @property
    def is_broken(self) -> bool:
        """True once the program closed the connection, or it was broken off here."""
        return bool(self._broken)

    @property
    def is_full(self) -> bool:
        """True if the program has sent as much as it may before any of it is read."""
        return self._kept >= WINDOW_BYTES

    async def receive(self) -> bytes:
        """Return the next bytes of the program; empty at the end.

        Raises:
            ConnectionResetError: The program closed the connection.
            CellLostError: The cell is gone.
        """
        if self._taken >= CREDIT_BYTES and not self._last_came:
            self._kept -= self._taken
            more, self._taken = self._taken, 0
            await self._say("credit", bytes=more)
        while not self._inbox:
            self._require_open()
            if self._last_came:
                return b""
            await self._change()
        data = self._inbox.popleft()
        self._taken += len(data)
        return data

    async def ended(self) -> None:
        """Wait until the program has sent its last byte, or closed the connection.

        So has one that sent 512 KiB more than was read: its end would not be noticed.
        """
        while not (self._broken or self._last_came or self.is_full):
            await self._change()

    async def room(self) -> int:
        """Wait until the program reads; return the number of bytes that may be sent.

        Raises:
            ConnectionResetError: The program closed the connection.
        """
        self._require_open()
        while not self._credit:
            await self._change()
            self._require_open()
        return min(self._credit, PIECE_BYTES)

    async def send(self, data: bytes | memoryview) -> None:
        """Send bytes to the program. They may change once all are sent.

        Raises:
            ConnectionResetError: The program closed the connection.
            CellLostError: The cell is gone.
        """
        while data:
            size = await self.room()
            piece, data = data[:size], data[size:]
            self._credit -= len(piece)
            await self._say("data", piece)

    async def end(self) -> None:
        """End the direction to the program. Raises CellLostError."""
        await self._say("end")

    async def turn_away(self) -> None:
        """End, and take in what a program still sends, so that it reads its answer."""
        await self.end()
        with anyio.move_on_after(_TURN_AWAY_SECONDS):
            while await self.receive():
                pass

    async def aclose(self) -> None:
        """End both directions once the program has read all. Raises CellLostError."""
        if not self._broken:
            await self._say("close")

    def _require_open(self) -> None:
        if self._broken:
            raise ConnectionResetError(errno.ECONNRESET, self._broken)

    async def _say(
        self, word: str, data: bytes | memoryview = b"", **fields: Any
    ) -> None:
        header = {"type": f"{self._family}_{word}", "id": self.number, **fields}
        await self._send_frame(header, data)

    async def _change(self) -> None:
        if self._changed.is_set():
            self._changed = anyio.Event()
        await self._changed.wait()


async def connect(address: str, port: int) -> socket.socket:
    """Connect to an address, without a lookup of names. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex((address, port))
        if code == errno.EINPROGRESS:
            await anyio.wait_writable(sock)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
    except BaseException:
        sock.close()
        raise
    return sock


async def receive(sock: socket.socket, size: int) -> bytes:
    """Return the next bytes, at most `size`; empty at the end. Raises OSError."""
    while True:
        try:
            return sock.recv(size)
        except BlockingIOError:
            await anyio.wait_readable(sock)


async def receive_into(sock: socket.socket, room: memoryview) -> memoryview:
    """Read the next bytes; return the part that they fill. Raises OSError."""
    while True:
        try:
            return room[: sock.recv_into(room)]
        except BlockingIOError:
            await anyio.wait_readable(sock)


async def send(sock: socket.socket, data: bytes) -> None:
    """Send all of `data`. Raises OSError."""
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view) :]
        except BlockingIOError:
            await anyio.wait_writable(sock)
