"""The pace of looks that are taken again and again while a program runs."""

from __future__ import annotations

import time

# Of the time that a look takes, so that looking costs a tenth of a CPU at most.
_REST = 10


class Pace:
    """Says when the next look is due; the first one is due at once.

    Args:
        least_seconds: The least time between two looks, by the end of the first.
    """

    def __init__(self, least_seconds: float = 0.05) -> None:
        self._least = least_seconds
        self._due = 0.0

    def wait(self) -> None:
        """Put the next look off by the least time."""
        self._due = time.monotonic() + self._least

    def due_in(self, later: float = 0.0) -> float:
        """Return the seconds until the next look, if it is put off by `later` ones."""
        return max(self._due + later - time.monotonic(), 0.0)

    def looked(self, began: float) -> None:
        """Plan the next look after one that began at a time of the monotonic clock."""
        now = time.monotonic()
        self._due = now + max(self._least, (now - began) * _REST)
