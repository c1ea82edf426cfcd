"""Watchers around whole calls: from their arrival, through all waits, to the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from toolcell.core import ToolCall, ToolResult

from .hook import CallCancelledError

CallStage = Literal["queued", "running", "parked"]
"""`queued`: it waits for a slot. `running`: it has its slot, and goes on. `parked`: it
waits for a person, and has lent its slot; answered, it waits for one again."""


class CallWatch(ABC):
    """Is told how one call goes on."""

    on_output: Sequence[Callable[[str, bytes], None]] = ()
    """Called with stream and bytes as output of the call's program arrives."""

    cancelled_as: CallCancelledError | None = None
    """The error that the record of the call has, once its watcher cancels it."""

    @abstractmethod
    def enter(self, stage: CallStage) -> None:
        """Take note that the call is at another stage; before the first it is new."""

    @abstractmethod
    def admit(self, call: ToolCall, seconds: float) -> None:
        """Take note that the guard has admitted the call; each attempt tells it.

        Args:
            call: The call as it is made: with valid arguments, and a person's edits.
            seconds: Seconds after which its run is stopped.
        """


class _NoWatch(CallWatch):
    def enter(self, stage: CallStage) -> None: ...

    def admit(self, call: ToolCall, seconds: float) -> None: ...


NO_WATCH: CallWatch = _NoWatch()
"""The watch of a call that nobody follows."""

MakeCall = Callable[[CallWatch], Awaitable[ToolResult]]
"""Makes the call, and returns its result."""


class CallWatcher(ABC):
    """Wraps each call of an executor, outside of the guard and of all waits.

    It sees also what is refused. A `Hook` sees the run of the tool alone.
    """

    @abstractmethod
    async def around_call(
        self, call: ToolCall, run_id: str | None, session: str | None, make: MakeCall
    ) -> ToolResult:
        """Return the result of `await make(watch)`.

        Args:
            call: The call, as it arrived.
            run_id: The agent's run.
            session: The client's session.
            make: Makes the call.

        Raises:
            CallCancelledError: It was cancelled here; that is its result.
        """
