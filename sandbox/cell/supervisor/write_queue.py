"""What waits to be written to a process that may never read it."""

from __future__ import annotations

import os
import select
import time
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Deque


class WriteQueue:
    """Messages for a descriptor, in order; only `flush` waits.

    Args:
        fd: Not blocking; it stays its owner's.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._messages: Deque[memoryview] = deque()
        self._begun = False

    def add(self, message: bytes) -> None:
        self._messages.append(memoryview(message))

    def push(self) -> bool:
        """Send what can be sent now; True if something is left."""
        while self._messages:
            first = self._messages[0]
            try:
                sent = os.write(self._fd, first)
            except BlockingIOError:
                return True
            except OSError:
                # Nobody is there to read the rest.
                self._messages.clear()
                return False
            self._begun = sent < len(first)
            if self._begun:
                self._messages[0] = first[sent:]
            else:
                self._messages.popleft()
        return False

    def flush(self, seconds: float) -> bool:
        """Send all, for so long at most; tell whether that was possible."""
        end = time.monotonic() + seconds
        while self.push():
            left = end - time.monotonic()
            if left <= 0 or not select.select([], [self._fd], [], left)[1]:
                return False
        return True

    def forget(self) -> None:
        """Drop all but the rest of what its reader has seen the beginning of."""
        while len(self._messages) > self._begun:
            self._messages.pop()

    @property
    def pending(self) -> bool:
        """Whether something is left to be sent."""
        return bool(self._messages)
