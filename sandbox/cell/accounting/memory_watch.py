"""Looks at the memory of a cell just often enough to end what takes too much of it."""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .memory import Memory


# The next look comes before programs that fill memory this fast could reach the limit,
_BYTES_PER_SECOND = 4 << 30
_LEAST_SECONDS, _MOST_SECONDS = 0.002, 0.02
# of a cell without a run, which holds only what earlier ones or commands left, later,
_MOST_BETWEEN_RUNS = 0.2
# and later where looks would take more than these shares of a CPU. What grows by less
# than this is at rest.
_SHARE, _SHARE_AT_REST = 0.1, 0.005
_AT_REST_BYTES = 64 * 1024
_MOST_AT_REST = 0.05
# In this time the kernel takes the memory of a process that was killed back.
_AFTER_A_KILL = 0.1
# What finds no more memory gives up by these: abort() of C and of Node, V8's trap.
_GIVES_UP = (signal.SIGABRT, signal.SIGTRAP)


def gave_up(status: int, resident_bytes: int, limit: int) -> bool:
    """Return True if a process passed the limit and ended itself between two looks.

    Args:
        status: How it ended, as `os.wait4` says.
        resident_bytes: The most that it had in memory.
        limit: In bytes; 0: no limit.
    """
    signalled = os.WIFSIGNALED(status) and os.WTERMSIG(status) in _GIVES_UP
    return signalled and 0 < limit < resident_bytes


class MemoryWatch:
    """Compares the memory of a cell with a limit, from time to time.

    Args:
        memory: Counts it.
        limit: The cell's own limit in bytes, which holds between runs.
    """

    def __init__(self, memory: Memory, limit: int) -> None:
        self._memory = memory
        self._own_limit = limit
        # A file of the same form as a cgroup's count.
        self._kills = 0
        self.kills_file = os.memfd_create("kills", os.MFD_CLOEXEC)
        # gVisor lets programs open it by /proc, as far as its mode allows.
        os.fchmod(self.kills_file, 0o600)
        self.rest()

    def begin(self, limit: int) -> None:
        """Watch a run.

        Args:
            limit: Its limit in bytes; 0 watches nothing.
        """
        self._memory.begin()
        self._start(limit, _MOST_SECONDS)

    def rest(self) -> None:
        """Watch what is left between runs."""
        self._start(self._own_limit, _MOST_BETWEEN_RUNS)

    def _start(self, limit: int, most: float) -> None:
        self.limit, self._most = limit, most
        self._last = 0
        self._wait = min(limit / _BYTES_PER_SECOND, most)
        self._next = time.monotonic() + self._wait

    def due_in(self, now: float) -> float:
        """Return the seconds until the next look."""
        return max(self._next - now, 0.0) if self.limit else self._most

    def exceeded(self, now: float) -> bool:
        """Take a look if one is due; return True if the limit is passed."""
        if not self.limit or now < self._next:
            return False
        began = time.process_time()
        used = self._memory.count(self.limit)
        self._wait = self._pause(used, time.process_time() - began)
        self._next = time.monotonic() + self._wait
        self._last = used
        return used > self.limit

    def is_passed(self) -> bool:
        """Return True if more than the limit is in use just now."""
        return self._memory.count(self.limit) > self.limit

    def _pause(self, used: int, cost: float) -> float:
        """Return the seconds until the next look; this one took `cost` of a CPU."""
        wait = max((self.limit - used) / _BYTES_PER_SECOND, cost / _SHARE)
        if abs(used - self._last) >= _AT_REST_BYTES:
            return min(max(wait, _LEAST_SECONDS), self._most)
        dear = min(cost / _SHARE_AT_REST, _MOST_AT_REST)
        return max(min(max(wait, self._wait * 2), self._most), dear)

    def count_kill(self) -> None:
        """Count a process that was killed for its memory."""
        self._next = time.monotonic() + _AFTER_A_KILL
        self._kills += 1
        os.pwrite(self.kills_file, b"oom_kill %d\n" % self._kills, 0)
