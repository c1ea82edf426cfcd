"""Finds processes that keep their open files from view."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Container


_MOST_SECONDS = 1.0
# More than this passes between two looks only if nobody looked.
_LONGEST_STEP_SECONDS = 0.2


class Hiding:
    """Counts the time for which processes hide their files, and could show them.

    A process hides them until it is confined, and on a busy machine that may take long.
    So time counts in which it ran or slept: while it waits for a CPU it does nothing.
    """

    def __init__(self) -> None:
        # By pid: time and CPU seconds at the last look, and the seconds that count.
        self._seen: dict[str, tuple[float, float, float]] = {}

    def forget_all_but(self, pids: Container[str]) -> None:
        """Forget processes that are gone."""
        self._seen = {pid: seen for pid, seen in self._seen.items() if pid in pids}

    def shows(self, pid: str) -> None:
        """Note that a process shows its files."""
        self._seen.pop(pid, None)

    def hides(self, pid: str, now: float, cpu_seconds: float, *, asleep: bool) -> bool:
        """Note that a process hides its files; return True if it does for too long.

        Args:
            pid: The process.
            now: The time of the monotonic clock, in seconds.
            cpu_seconds: What the process has used of a CPU since its start.
            asleep: True if it neither runs nor waits for a CPU.
        """
        before, used, counted = self._seen.get(pid, (now, cpu_seconds, 0.0))
        step = now - before if asleep else cpu_seconds - used
        counted += min(max(step, 0.0), _LONGEST_STEP_SECONDS)
        self._seen[pid] = now, cpu_seconds, counted
        return counted > _MOST_SECONDS
