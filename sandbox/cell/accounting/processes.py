"""The processes of a cell whose user others have, too: counted again and again.

The kernel counts those of a user on the whole machine, so its limit bounds a cell only
as long as the others stay as many, and it bounds no root. What passes that limit is
seen here.
"""

from __future__ import annotations

import os
import time

from ..kernel import process_tree
from .looks import Pace

# Commands and interpreters beside a run have as many each by the kernel's limit.
_TIMES = 2


class ProcessWatch:
    """Looks whether a cell has too many processes and threads.

    Args:
        most: Those that one program may have.
    """

    def __init__(self, most: int) -> None:
        self._most = most * _TIMES
        self._pace = Pace()

    def begin(self) -> None:
        """Begin a run."""
        self._pace.wait()

    def due_in(self) -> float:
        """Return the seconds until the next look."""
        return self._pace.due_in()

    def exceeded(self) -> bool:
        """Look, if it is time for that; True if there are too many."""
        if self._pace.due_in() > 0:
            return False
        began = time.monotonic()
        used = sum(map(_threads, process_tree.others()))
        self._pace.looked(began)
        return used > self._most


def _threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        # It has ended meanwhile.
        return 0
