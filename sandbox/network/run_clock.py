"""The clock of a run, which stands still while a person is asked."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import Protocol

import anyio

from toolcell.core import CellLostError


class Pausable(Protocol):
    """The deadline of a run, whose clock may stand still for a while."""

    def pause_deadline(self) -> AbstractAsyncContextManager[None]:
        """Pause the deadlines of the run and of the runs around it."""


_answering: ContextVar[Pausable | None] = ContextVar("answering", default=None)
"""The run whose call is being answered in this context."""


def answer_for(run: Pausable) -> Pausable | None:
    """Let `pause_deadline` pause this run, in the task that answers a call of it.

    `CallServer` does so for runs of this machine. Returns the run around it, if any.
    """
    outer = _answering.get()
    _answering.set(run)
    return outer


@asynccontextmanager
async def pause_deadline() -> AsyncIterator[None]:
    """Pause the deadline of the program whose call or request is being answered.

    For handlers that wait for a person. Other threads of the program run on meanwhile,
    so a limit bounds the time that it can gain (`HostCalls.max_pause_seconds`). The
    deadlines of programs around this one pause, too. Outside of a handler it does
    nothing.
    """
    run = _answering.get()
    async with run.pause_deadline() if run else contextlib.nullcontext():
        yield


class RunClock:
    """The clock of one run: its deadline here, and that of its supervisor.

    Args:
        extend: Moves the supervisor's deadline by so many seconds. It may raise
            CellLostError.
        max_pause_seconds: Seconds by which the deadline may be moved in all. When it is
            reached the clock runs again.
    """

    def __init__(
        self, extend: Callable[[float], Awaitable[None]], max_pause_seconds: float
    ) -> None:
        self._tell = extend
        self._left = max_pause_seconds
        self._outer = _answering.get()
        self._pauses = 0
        self._began = 0.0
        self._scope: anyio.CancelScope | None = None
        self.deadline = math.inf
        """The time by which a working supervisor has ended the run."""

    def scope(self, at_least: float = 0.0) -> anyio.CancelScope:
        """Return a scope that ends at the deadline, as pauses move it.

        Args:
            at_least: The earliest time at which it ends.
        """
        deadline = max(self.deadline, at_least)
        self._scope = anyio.CancelScope(deadline=deadline)
        return self._scope

    @asynccontextmanager
    async def pause_deadline(self) -> AsyncIterator[None]:
        """Pause the deadlines of the run and of the runs around it."""
        outer = self._outer
        async with outer.pause_deadline() if outer else contextlib.nullcontext():
            self._pauses += 1
            try:
                if self._pauses == 1:
                    self._began = anyio.current_time()
                    await self._extend(self._left)
                yield
            finally:
                self._pauses -= 1
                if self._pauses == 0:
                    paused = anyio.current_time() - self._began
                    self._left = left = max(self._left - paused, 0.0)
                    await self._extend(-left)

    async def _extend(self, seconds: float) -> None:
        if seconds:
            self.deadline += seconds
            if self._scope is not None:
                self._scope.deadline += seconds
            # Without waiting for a turn to send: a cancelled call would not get one,
            # and the clock would stay stopped.
            with contextlib.suppress(CellLostError):
                await self._tell(seconds)
