"""Stops all processes of a cell for a while.

Theory of operation. The first process of a PID namespace can signal all others at once,
and none of them can refuse SIGSTOP. The kernel counts signals to all as sent to a
process that is being forked, too. Elsewhere it signals one after the other. But one
that still runs can wake another one, so all are stopped anew until each thread is seen
stopped, several times in a row. Processes that were stopped before stay so.
"""

from __future__ import annotations

import os
import signal
import time

from ..kernel import process_tree
from ..kernel.process_tree import stat_of

_STOPPED = b"T"
# Stopped, ended, or in a system call that it leaves stopped.
_STILL = (_STOPPED, b"Z", b"X", b"D")
_ROUNDS = 5
_SECONDS = 2.0


class Pause:
    """A time in which no process of the cell runs, but this one."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._stopped_before: set[int] = set()

    @property
    def seconds(self) -> float:
        """The seconds since it began; 0 if there is none."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    def begin(self) -> bool:
        """Stop all processes but this one; False if they did not stop in time."""
        if self._began is not None:
            return True
        self._stopped_before = {
            pid for pid in process_tree.others() if stat_of(pid)[:1] == [_STOPPED]
        }
        self._began = time.monotonic()
        still = 0
        while still < _ROUNDS:
            process_tree.signal_others(signal.SIGSTOP)
            still = still + 1 if _all_still() else 0
            # Where this process itself stood still, the time proves nothing.
            if not still and self.seconds > _SECONDS:
                self.end()
                return False
        return True

    def end(self) -> None:
        """Let them go on: children first, as shells report stopped children."""
        if self._began is None:
            return
        self._began = None
        stopped = set(process_tree.others()) - self._stopped_before
        for pid in sorted(stopped, reverse=True):
            _signal(pid, signal.SIGCONT)


def _all_still() -> bool:
    others = process_tree.others()
    return all(state in _STILL for pid in others for state in _states_of(pid))


def _states_of(pid: int) -> list[bytes]:
    """Return the states of a process's threads; the first one may be a zombie alone."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [field for thread in threads for field in stat_of(pid, thread)[:1]]


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        # It has ended meanwhile.
        return
