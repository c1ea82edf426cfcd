"""Bytes to write to a process that may never read them."""

from __future__ import annotations

import os
import select
import time
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Deque


class WriteQueue:
    """Writes messages to a descriptor in order. Only `flush` blocks.

    Args:
        fd: A non-blocking descriptor. The queue does not close it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._messages: Deque[memoryview] = deque()
        self._begun = False

    def add(self, message: bytes) -> None:
        """Queue a message; `push` sends it."""
        self._messages.append(memoryview(message))

    def push(self) -> bool:
        """Write as much as possible without blocking; True if something is left."""
        while self._messages:
            first = self._messages[0]
            try:
                sent = os.write(self._fd, first)
            except BlockingIOError:
                return True
            except OSError:
                # The reader is gone.
                self._messages.clear()
                return False
            self._begun = sent < len(first)
            if self._begun:
                self._messages[0] = first[sent:]
            else:
                self._messages.popleft()
        return False

    def flush(self, seconds: float) -> bool:
        """Write everything, for at most `seconds`; True if nothing is left."""
        end = time.monotonic() + seconds
        while self.push():
            left = end - time.monotonic()
            if left <= 0 or not select.select([], [self._fd], [], left)[1]:
                return False
        return True

    def forget(self) -> None:
        """Drop every queued message except one that is partly written."""
        while len(self._messages) > self._begun:
            self._messages.pop()

    @property
    def pending(self) -> bool:
        """True if something is left to be written."""
        return bool(self._messages)
