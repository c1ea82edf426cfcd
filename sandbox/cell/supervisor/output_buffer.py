"""One output stream of a program: sent live up to a cap, then kept as a tail."""

from __future__ import annotations

import time
from collections import deque

from ..wire.frames import encode

_FLUSH_BYTES = 32 * 1024
_FLUSH_SECONDS = 0.02


class OutputBuffer:
    """Sends the first half of the cap live, then keeps the newest half.

    Args:
        name: "stdout" or "stderr".
        cap: Bytes that reach the host. When it is reached the middle is left out and
            counted in `dropped`.
        streamed: True to send the whole cap live and keep no tail.
    """

    def __init__(self, name: str, cap: int, streamed: bool = False) -> None:
        self._name = name
        self._tail_cap = 0 if streamed else cap // 2
        self._head_room = cap - self._tail_cap
        self._pending = bytearray()
        self._pending_since = 0.0
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.dropped = 0
        self.sent = 0
        """Bytes that were handed out while the program ran."""

    def add(self, data: bytes) -> None:
        """Add bytes that the program wrote."""
        head, tail = data[: self._head_room], data[self._head_room :]
        if head:
            if not self._pending:
                self._pending_since = time.monotonic()
            self._pending += head
            self._head_room -= len(head)
        if tail:
            self._keep_newest(tail)

    def _keep_newest(self, data: bytes) -> None:
        self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail_bytes > self._tail_cap:
            excess = self._tail_bytes - self._tail_cap
            oldest = self._tail.popleft()
            if len(oldest) > excess:
                self._tail.appendleft(oldest[excess:])
                excess = min(excess, len(oldest))
            else:
                excess = len(oldest)
            self._tail_bytes -= excess
            self.dropped += excess

    def flush_due_in(self) -> float:
        """Return the seconds until pending output should be sent."""
        if not self._pending:
            return 3600.0
        if len(self._pending) >= _FLUSH_BYTES:
            return 0.0
        return self._pending_since + _FLUSH_SECONDS - time.monotonic()

    def live_frames(self) -> list[bytes]:
        """Remove pending output and return it as frames."""
        data, self._pending = bytes(self._pending), bytearray()
        self.sent += len(data)
        return [encode({"type": "output", "stream": self._name}, data)] if data else []

    def last_frames(self) -> list[bytes]:
        """Return all unsent output; the tail frame has the number of dropped bytes."""
        frames = self.live_frames()
        if self.dropped or self._tail:
            header = {"type": "tail", "stream": self._name, "dropped": self.dropped}
            frames.append(encode(header, b"".join(self._tail)))
        return frames
