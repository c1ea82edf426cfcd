"""The latest output of a running call, for readers that follow it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import anyio

MAX_BYTES = 65_536
"""Bytes of output that are kept of one call. When it is reached the oldest are dropped,
and a reader that has not read them is told how many."""

_PIECE_BYTES = 4_096
_MAX_PIECES = 512


@dataclass(slots=True)
class _Piece:
    start: int
    """The bytes of output before it."""

    stream: str
    data: bytearray

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class OutputRing:
    """The last 64 KiB that a program has printed, on both streams in their order.

    A reader holds no queue: it has a place, and reads what is kept after it.
    """

    def __init__(self) -> None:
        self._pieces: deque[_Piece] = deque()
        self._changed: anyio.Event | None = None
        self.size = 0
        """The bytes that were printed so far."""

    def add(self, stream: str, data: bytes) -> None:
        """Add output.

        Args:
            stream: `stdout` or `stderr`.
            data: The bytes.
        """
        self.size += len(data)
        data = data[-MAX_BYTES:]
        start = self.size - len(data)
        for cut in range(0, len(data), _PIECE_BYTES):
            self._append(start + cut, stream, data[cut : cut + _PIECE_BYTES])
        # Each byte may be on another stream than the one before: pieces count as well.
        while self._pieces and (
            self._pieces[0].end <= self.size - MAX_BYTES
            or len(self._pieces) > _MAX_PIECES
        ):
            self._pieces.popleft()
        self.wake()

    def _append(self, start: int, stream: str, data: bytes) -> None:
        last = self._pieces[-1] if self._pieces else None
        fits = last is not None and len(last.data) + len(data) <= _PIECE_BYTES
        if last is not None and fits and last.stream == stream:
            last.data += data
        else:
            self._pieces.append(_Piece(start, stream, bytearray(data)))

    def read(self, after: int = 0) -> tuple[int, list[tuple[str, bytes]]]:
        """Return the output after a place.

        Args:
            after: The place: bytes of output that the reader has, or has given up.

        Returns:
            The number of bytes that are missing before it, since they were dropped;
            and the output as pairs of stream and bytes.
        """
        floor = max(after, self.size - MAX_BYTES)
        if self._pieces:
            floor = max(floor, self._pieces[0].start)
        found = [
            (each.stream, bytes(each.data[max(0, floor - each.start) :]))
            for each in self._pieces
            if each.end > floor
        ]
        return floor - after, found

    def wake(self) -> None:
        """Let all readers that wait look again."""
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()

    async def changed(self) -> None:
        """Wait until something was added, or the call has ended."""
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()
