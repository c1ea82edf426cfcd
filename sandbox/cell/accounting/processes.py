"""The processes of a cell whose user others have, too: counted again and again.

The kernel counts those of a user on the whole machine, so its limit bounds a cell only
as long as the others stay as many, and it bounds no root. What passes that limit is
seen here.
"""

from __future__ import annotations

import os
import time

from ..kernel import process_tree

_LEAST_SECONDS = 0.05
# Of the time that a look takes, so that looking costs a tenth of a CPU at most.
_REST = 10
# Commands and interpreters beside a run have as many each by the kernel's limit.
_TIMES = 2


class ProcessWatch:
    """Looks whether a cell has too many processes and threads.

    Args:
        most: Those that one program may have.
    """

    def __init__(self, most: int) -> None:
        self._most = most * _TIMES
        self._due = 0.0

    def begin(self) -> None:
        """Begin a run."""
        self._due = time.monotonic() + _LEAST_SECONDS

    def due_in(self) -> float:
        """Return the seconds until the next look."""
        return max(self._due - time.monotonic(), 0.0)

    def exceeded(self) -> bool:
        """Look, if it is time for that; True if there are too many."""
        began = time.monotonic()
        if began < self._due:
            return False
        used = sum(map(_threads, process_tree.others()))
        now = time.monotonic()
        self._due = now + max(_LEAST_SECONDS, (now - began) * _REST)
        return used > self._most


def _threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        # It has ended meanwhile.
        return 0
