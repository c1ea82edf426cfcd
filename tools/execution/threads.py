"""Threads for blocking functions, and a count of those that run on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal

import anyio
from anyio.to_thread import run_sync

from toolcell.core import ToolExecutionError


class Workers:
    """Runs blocking functions in threads of their own, with the caller's context.

    A thread cannot be killed. When its call is cancelled it is left behind, and
    `still_running` counts it until the function returns.

    Args:
        max_threads: Functions that run at once, left-behind ones included. When it
            is reached further calls fail.
    """

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._threads = 0
        self._left_behind = 0

    @property
    def still_running(self) -> int:
        """The number of functions that run on after their calls ended."""
        return self._left_behind

    def job(self, function: Callable[[], Any]) -> ThreadJob:
        """Return a run of a function; await its `run`."""
        return ThreadJob(self, function)


class ThreadJob:
    """One run of a blocking function."""

    def __init__(self, workers: Workers, function: Callable[[], Any]) -> None:
        self._workers = workers
        self._function = function
        self._state: Literal["waiting", "running", "ended", "left_behind"] = "waiting"

    @property
    def left_behind(self) -> bool:
        """True if the function ran on when its call ended."""
        return self._state == "left_behind"

    async def run(self) -> Any:
        """Return what the function returns.

        Raises:
            ToolExecutionError: Too many functions run already.
        """
        workers = self._workers
        with workers._lock:
            if workers._threads >= workers._max_threads:
                raise ToolExecutionError(
                    f"{workers._threads} functions run in threads already, "
                    f"{workers._left_behind} of them left behind by calls that ended",
                    hint="declare tools that may hang as sandboxed",
                )
            workers._threads += 1
        # Workers count for themselves; anyio's shared limit is not ours to use up.
        room = anyio.CapacityLimiter(1)
        try:
            return await run_sync(self._work, abandon_on_cancel=True, limiter=room)
        finally:
            self._leave()

    def _work(self) -> Any:
        with self._workers._lock:
            if self._state != "waiting":
                return None
            self._state = "running"
        try:
            return self._function()
        finally:
            with self._workers._lock:
                self._workers._threads -= 1
                if self.left_behind:
                    self._workers._left_behind -= 1
                else:
                    self._state = "ended"

    def _leave(self) -> None:
        with self._workers._lock:
            if self._state == "waiting":
                # Cancelled before a thread took it up; none will.
                self._state = "ended"
                self._workers._threads -= 1
            elif self._state == "running":
                self._state = "left_behind"
                self._workers._left_behind += 1
