"""Holds what waits to be written to a connection, and says whose turn it is."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

import anyio
from anyio.lowlevel import checkpoint

from .tls import TLSSocket

PIECE_BYTES = 64 * 1024
"""Bytes of a message in one frame. When it is exceeded the link ends."""

MORE = 0x80
"""Added to the kind of a frame whose message goes on in the next one."""

PREFIX = struct.Struct(">BII")
"""A frame's kind, the number of its exchange, and the length of what follows."""

MAX_BEHIND_BYTES = 256 * 1024 * 1024
"""Bytes of small messages that wait because the other end reads too slowly. When it is
exceeded the link is given up."""

_TURN_BYTES = 256 * 1024
_MESSAGE_BYTES = 100


class Outbox:
    """Writes messages: the first of a turn of the event loop at once, others together.

    Large ones leave in pieces, a piece of each exchange in turn.

    Args:
        connection: Takes the bytes.
        lost_seconds: Seconds that the other end may take nothing.
        give_up: Called with the reason when it took nothing, or the connection broke.
    """

    def __init__(
        self,
        connection: TLSSocket,
        lost_seconds: float,
        give_up: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._lost_seconds = lost_seconds
        self._give_up = give_up
        self._unsent = memoryview(b"")
        self._small: list[bytes] = []
        self._behind = 0
        self._lines: dict[int, deque[_Large]] = {}
        self._leaving: list[_Large] = []
        self._work = anyio.Event()

    def put(self, kind: int, number: int, data: bytes) -> None:
        """Put a message in line."""
        if len(data) > PIECE_BYTES or number in self._lines:
            self._line_up(_Large(kind, number, data))
            return
        self._small.append(PREFIX.pack(kind, number, len(data)) + data)
        self._behind += len(data) + _MESSAGE_BYTES
        if self._behind > MAX_BEHIND_BYTES:
            self._give_up("it reads too slowly")
        self._begin()

    @property
    def waits(self) -> bool:
        """True if something is to be written, a sign of life among others."""
        return bool(self._unsent or self._small or self._lines)

    async def deliver(self, kind: int, number: int, data: bytes) -> None:
        """Put a message in line; return when it is on its way, or never will be."""
        message = _Large(kind, number, data)
        self._line_up(message)
        await message.sent.wait()

    def _line_up(self, message: _Large) -> None:
        self._lines.setdefault(message.number, deque()).append(message)
        self._begin()

    def _begin(self) -> None:
        if not self._work.is_set():
            self._work.set()
            if not self._unsent:
                self._write()

    async def run(self) -> None:
        """Write what is put, for ever."""
        while True:
            await self._work.wait()
            self._work = anyio.Event()
            while self._unsent or self._small or self._lines:
                self._write()
                if self._unsent:
                    await self._wait()
                elif self._lines:
                    await checkpoint()

    async def _wait(self) -> None:
        with anyio.move_on_after(self._lost_seconds):
            await self._connection.writable()
            return
        self._give_up(f"it took nothing for {self._lost_seconds:g} seconds")

    def close(self) -> None:
        """Let whoever waits for a message to leave go on."""
        waiting = [frame for line in self._lines.values() for frame in line]
        for message in [*waiting, *self._leaving]:
            message.sent.set()

    def _write(self) -> None:
        """Write as much as the connection takes of what has its turn."""
        if not self._unsent:
            self._unsent = memoryview(self._next_pieces())
        try:
            taken = self._connection.write(self._unsent)
        except OSError as error:
            self._give_up(f"it takes nothing: {type(error).__name__}")
            return
        self._unsent = self._unsent[taken:]
        if not self._unsent:
            for message in self._leaving:
                message.sent.set()
            self._leaving = []

    def _next_pieces(self) -> bytes:
        pieces, self._small, self._behind = self._small, [], 0
        size = 0
        while self._lines and size < _TURN_BYTES:
            number = next(iter(self._lines))
            line = self._lines.pop(number)
            piece = line[0].piece()
            pieces.append(piece)
            size += len(piece)
            if line[0].is_done:
                self._leaving.append(line.popleft())
            if line:
                self._lines[number] = line
        return b"".join(pieces)


class _Large:
    """A message that leaves in pieces, or that somebody waits for."""

    def __init__(self, kind: int, number: int, data: bytes) -> None:
        self._kind = kind
        self.number = number
        self._data = memoryview(data)
        self.sent = anyio.Event()
        self.is_done = False

    def piece(self) -> bytes:
        """Return the next frame."""
        data, self._data = self._data[:PIECE_BYTES], self._data[PIECE_BYTES:]
        self.is_done = not self._data
        code = self._kind if self.is_done else self._kind | MORE
        return PREFIX.pack(code, self.number, len(data)) + data
