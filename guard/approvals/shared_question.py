"""A request that the handler is asked once, for all calls that wait for it."""

from __future__ import annotations

import threading


class SharedQuestion:
    """A request that the handler is asked once, for all calls that wait for it."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self.waiting = 0
        """The number of calls that wait for the answer."""

        self.asked = False
        """True while the handler is asked."""

    def take(self) -> bool:
        """Return True if this caller must ask: no other call has asked to the end."""
        taken = self._turn.acquire(blocking=False)
        self.asked = self.asked or taken
        return taken

    def drop(self) -> None:
        """Let another waiting call ask the handler again."""
        self.asked = False
        self._turn.release()
