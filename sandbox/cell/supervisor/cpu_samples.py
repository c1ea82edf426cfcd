"""CPU time of processes that nobody waits for, by looking at what is at work.

The kernel adds the time of a process that ends to its parent's account when the parent
waits for it, and to nobody's when the parent ignores SIGCHLD. Where no cgroup counts,
there is only what is seen: at moments that a program cannot know, each thread that is
found runnable stands for the time since the last look. So once a program has been seen
to let many processes end, it is charged by such samples, less what chance may add.
"""

from __future__ import annotations

import math
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator


# Looks are half to one and a half times this apart.
_INTERVAL_SECONDS = 0.05
# A program that makes few processes is charged by the kernel's accounts alone.
_MANY_PROCESSES = 8
# Standard deviations that a charge is below what was seen.
_DOUBT = 3
# What a tick and the host's other work may add.
_TOLERANCE = 0.1


class CpuSamples:
    """The looks at one run.

    Args:
        now: When it began, by `time.monotonic`.
        cpus: How many threads can be at work at once.
    """

    def __init__(self, now: float, cpus: int) -> None:
        self._cpus = cpus
        self._last = now
        self._next = now + _pause()
        self._counted = self._lost = 0.0
        self._seen: set[str] = set()
        self._ended = 0
        self._at_work = self._seconds = self._squares = 0.0

    def due(self, now: float) -> float:
        """Return how many seconds there are until the next look."""
        return max(self._next - now, 0.0)

    def charge(self, now: float, counted: float, processes: list[str]) -> float:
        """Return the CPU seconds that the program is charged, at least `counted`.

        Args:
            now: The time, by `time.monotonic`.
            counted: What the accounts of the living and the collected say.
            processes: Those that live.
        """
        self._lost += max(self._counted - counted, 0.0)
        self._counted = counted
        if now >= self._next:
            self._look(now, processes)
        known = counted + self._lost
        if self._ended < _MANY_PROCESSES:
            return known
        share = self._at_work / (self._cpus * self._seconds)
        doubt = _DOUBT * self._cpus * math.sqrt(share * (1 - share) * self._squares)
        return max(known, self._at_work * (1 - _TOLERANCE) - doubt)

    def _look(self, now: float, processes: list[str]) -> None:
        passed, self._last = now - self._last, now
        self._next = now + _pause()
        self._ended += len(self._seen.difference(processes))
        self._seen = set(processes)
        at_work = sum(_at_work(task) for pid in processes for task in _tasks(pid))
        self._at_work += min(at_work, self._cpus) * passed
        self._seconds += passed
        self._squares += passed * passed


def _pause() -> float:
    return _INTERVAL_SECONDS * (0.5 + os.urandom(1)[0] / 256)


def _tasks(pid: str) -> Iterator[str]:
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            yield f"/proc/{pid}/task/{task}"
    except OSError:
        return


def _at_work(task: str) -> float:
    """Return which part of a thread is at work, between 0 and 1.

    A runnable one may have to share a CPU with others of this machine.
    """
    if _text(f"{task}/stat").rpartition(")")[2][1:2] != "R":
        return 0.0
    ran, waited = (
        [int(field) for field in _text(f"{task}/schedstat").split()] + [0] * 2
    )[:2]
    return ran / (ran + waited) if ran + waited else 1.0


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
