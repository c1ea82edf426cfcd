"""The output of one command: kept for its result, and passed to who reads it."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

import anyio

from ..cell.wire.contract import CREDIT_BYTES
from ..client.types import Stream
from ..results.process_end import kept_text

RECENT_BYTES = 65_536
"""Bytes of a command's latest output that a new reader gets first. When it is reached
the oldest are dropped."""


@dataclass(slots=True)
class KeptOutput:
    """The beginning and the end of one stream.

    Args:
        cap: Bytes that are kept. When it is reached bytes are dropped from the middle.
    """

    cap: int
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    dropped: int = 0

    def add(self, data: bytes) -> None:
        room = max(self.cap // 2 - len(self.head), 0)
        self.head += data[:room]
        self.tail += data[room:]
        over = len(self.head) + len(self.tail) - self.cap
        if over > 0:
            self.dropped += over
            del self.tail[:over]

    def raw(self) -> bytes:
        return bytes(self.head + self.tail)

    def text(self) -> str:
        """Return it as text; what is not UTF-8 is replaced."""
        return kept_text(self.head, self.tail, self.dropped)


@dataclass(slots=True)
class _Piece:
    stream: Stream
    data: bytes
    readers: int


class OutputFeed:
    """Passes output to any number of readers; the slowest one sets the pace.

    Until the first reader comes, or `release`, output is held, and the command waits
    when it has used up its credit. After that, while nobody reads, output flows into
    the ring of recent bytes and the command is never held up. A reader that stops
    reading holds the command up, and costs no more memory than the command's credit.

    Args:
        give_credit: Called with a number of bytes that every reader has taken, once
            they are `CREDIT_BYTES`.
    """

    def __init__(self, give_credit: Callable[[int], None]) -> None:
        self._give_credit = give_credit
        self._taken = 0
        self._is_held = True
        self._recent: deque[tuple[Stream, bytes]] = deque()
        self._recent_bytes = 0
        self._queues: list[deque[_Piece]] = []
        self._changed = anyio.Event()
        self._ended = False

    def add(self, stream: Stream, data: bytes) -> None:
        """Take a piece of output."""
        if self._is_held:
            self._recent.append((stream, data))
            self._recent_bytes += len(data)
            return
        self._remember(stream, data)
        if not self._queues:
            self._note_taken(len(data))
            return
        piece = _Piece(stream, data, len(self._queues))
        for queue in self._queues:
            queue.append(piece)
        self._wake()

    def release(self) -> None:
        """Let output flow whether or not anybody reads."""
        if self._is_held:
            self._is_held = False
            self._note_taken(self._recent_bytes)
            self._trim()

    def end(self) -> None:
        """Let readers end, once they have read the rest."""
        self._ended = True
        self._wake()

    async def read(self) -> AsyncGenerator[tuple[Stream, bytes], None]:
        """Yield the recent output, then what comes, until the end."""
        queue: deque[_Piece] = deque()
        self._queues.append(queue)
        recent = list(self._recent)
        if self._is_held:
            self._is_held = False
            queue.extend(_Piece(stream, data, 1) for stream, data in recent)
            recent = []
            self._trim()
        try:
            for stream, data in recent:
                yield stream, data
            while queue or not self._ended:
                if not queue:
                    await self._changed.wait()
                    continue
                piece = queue.popleft()
                self._release(piece)
                yield piece.stream, piece.data
        finally:
            self._queues.remove(queue)
            for piece in queue:
                self._release(piece)

    def _release(self, piece: _Piece) -> None:
        piece.readers -= 1
        if not piece.readers:
            self._note_taken(len(piece.data))

    def _note_taken(self, size: int) -> None:
        self._taken += size
        if self._taken >= CREDIT_BYTES:
            size, self._taken = self._taken, 0
            self._give_credit(size)

    def _remember(self, stream: Stream, data: bytes) -> None:
        data = data[-RECENT_BYTES:]
        self._recent.append((stream, data))
        self._recent_bytes += len(data)
        self._trim()

    def _trim(self) -> None:
        while self._recent_bytes > RECENT_BYTES:
            first_stream, first = self._recent.popleft()
            over = min(self._recent_bytes - RECENT_BYTES, len(first))
            self._recent_bytes -= over
            if over < len(first):
                self._recent.appendleft((first_stream, first[over:]))

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
