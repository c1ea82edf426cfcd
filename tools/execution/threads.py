"""Threads for blocking functions, and a count of those that run on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import anyio
from anyio.to_thread import run_sync

from toolcell.core import ToolExecutionError


class Workers:
    """Runs blocking functions in their own threads, with the caller's context.

    A thread cannot be killed. When its call is cancelled it is left behind, and
    `still_running` counts it until the function returns.

    Args:
        max_threads: Functions that run at once, left-behind ones included. When it
            is reached further calls fail. Once a second agent has called, an agent has
            half of them.
    """

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._threads: Counter[str] = Counter()
        """By agent."""

        self._left_behind = 0
        self._first_agent: str | None = None
        self._is_shared = False

    @property
    def still_running(self) -> int:
        """The number of functions that run on after their calls ended."""
        return self._left_behind

    def job(self, agent: str, function: Callable[[], Any]) -> ThreadJob:
        """Return a run of a function for an agent; await its `run`."""
        return ThreadJob(self, agent, function)

    def begin(self, agent: str) -> None:
        """Count a thread. Raises ToolExecutionError if there are too many."""
        with self._lock:
            if self._first_agent is None:
                self._first_agent = agent
            self._is_shared = self._is_shared or agent != self._first_agent
            running = self._threads.total()
            share = (self._max_threads + 1) // 2
            if running >= self._max_threads or (
                self._is_shared and self._threads[agent] >= share
            ):
                raise ToolExecutionError(
                    f"{running} functions run in threads already, "
                    f"{self._threads[agent]} of them of this agent; "
                    f"{self._left_behind} were left behind by calls that ended",
                    hint="declare tools that may hang as sandboxed",
                )
            self._threads[agent] += 1

    def leave_behind(self) -> None:
        """Count a thread as one whose call has ended."""
        with self._lock:
            self._left_behind += 1

    def end(self, agent: str, *, left_behind: bool = False) -> None:
        """Count a thread no more.

        Args:
            agent: The agent whose it was.
            left_behind: True if its call ended before it did.
        """
        with self._lock:
            self._threads[agent] -= 1
            if not self._threads[agent]:
                del self._threads[agent]
            self._left_behind -= left_behind


class ThreadJob:
    """One run of a blocking function.

    Args:
        workers: Counts its thread.
        agent: The agent that calls.
        function: The function.
    """

    def __init__(
        self, workers: Workers, agent: str, function: Callable[[], Any]
    ) -> None:
        self._workers = workers
        self._agent = agent
        self._function = function
        # The call and the thread may end at the same moment.
        self._lock = threading.Lock()
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
        self._workers.begin(self._agent)
        # Workers count for themselves; anyio's shared limit is not ours to use up.
        room = anyio.CapacityLimiter(1)
        try:
            return await run_sync(self._work, abandon_on_cancel=True, limiter=room)
        finally:
            self._leave()

    def _work(self) -> Any:
        with self._lock:
            if self._state != "waiting":
                return None
            self._state = "running"
        try:
            return self._function()
        finally:
            with self._lock:
                self._workers.end(self._agent, left_behind=self.left_behind)
                if not self.left_behind:
                    self._state = "ended"

    def _leave(self) -> None:
        with self._lock:
            if self._state == "waiting":
                # Cancelled before a thread took it up; none will.
                self._state = "ended"
                self._workers.end(self._agent)
            elif self._state == "running":
                self._state = "left_behind"
                self._workers.leave_behind()
