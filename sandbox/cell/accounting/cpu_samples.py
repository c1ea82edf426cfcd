"""Samples the CPU time of processes that their parents do not wait for.

The kernel adds the time of an ended process to its parent when the parent waits for it;
when the parent ignores SIGCHLD the time is lost. Where no cgroup counts it, it can only
be sampled: at moments that a program cannot predict, each runnable thread stands for
the time since the last sample. Once many processes of a program have ended, the program
is charged by these samples, less a margin for chance.
"""

from __future__ import annotations

import math
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator


# Samples are half to one and a half times this apart.
_INTERVAL_SECONDS = 0.05
# A program with fewer ended processes is charged by the kernel's accounts alone.
_MANY_PROCESSES = 8
# A charge is this many standard deviations below the estimate.
_DOUBT = 3
# Clock ticks and other work of the host may add this share.
_TOLERANCE = 0.1


class CpuSamples:
    """The samples of one run, and its charge by them.

    Args:
        now: The start of the run, by `time.monotonic`.
        cpus: The number of CPUs that its threads may use.
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
        """Return the seconds until the next sample."""
        return max(self._next - now, 0.0)

    def charge(self, now: float, counted: float, processes: list[str]) -> float:
        """Return the CPU seconds that the program is charged, at least `counted`.

        Args:
            now: The time, by `time.monotonic`.
            counted: CPU seconds of living and collected processes, by the kernel.
            processes: The pids of living processes.
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
    """Return the share of a CPU that a thread has, between 0 and 1.

    A runnable thread may wait for a CPU that other processes of the machine use.
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
