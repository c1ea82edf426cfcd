"""Finds processes that keep their open files from view."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Container


_MOST_SECONDS = 1.0
# One that has others take the CPUs could wait for as long as it likes.
_MOST_WAITING_SECONDS = 10.0
# More than this passes between two looks only if nobody looked.
_LONGEST_STEP_SECONDS = 0.2


class Hiding:
    """Counts the time for which processes hide their files, and could show them.

    A process hides them until it is confined, and on a busy machine that may take long.
    So time counts in which it ran or slept: while it waits for a CPU it does nothing.
    No machine is so busy that it waits for ten seconds.
    """

    def __init__(self) -> None:
        # By pid: time and CPU seconds at the last look; the seconds that count; all.
        self._seen: dict[str, tuple[float, float, float, float]] = {}

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
        start = (now, cpu_seconds, 0.0, 0.0)
        before, used, counted, hidden = self._seen.get(pid, start)
        passed = min(now - before, _LONGEST_STEP_SECONDS)
        counted += passed if asleep else min(max(cpu_seconds - used, 0.0), passed)
        hidden += passed
        self._seen[pid] = now, cpu_seconds, counted, hidden
        return counted > _MOST_SECONDS or hidden > _MOST_WAITING_SECONDS
