"""A request that the handler is asked once, for all calls that wait for it."""

from __future__ import annotations

import threading


class SharedQuestion:
    """A request that the handler is asked once, for all calls that wait for it."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self.waiting = 0
        """The number of calls that wait for the answer."""

        self.is_over = False
        """True once the handler was asked, and has replied or failed."""

    def take(self) -> bool:
        """Return True if this caller must ask: nobody asks, or has asked to the end."""
        return self._turn.acquire(blocking=False)

    def drop(self) -> None:
        """Let another waiting call ask the handler again."""
        self._turn.release()
