"""Watchers of whole calls: from their arrival, through all waits, to the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

from toolcell.core import Part, ToolCall, ToolStatus

from .hook import CallCancelledError

CallStage = Literal["queued", "running", "parked"]
"""`queued`: it waits for a slot. `running`: it has its slot, and goes on. `parked`: it
waits for a person, and has lent its slot; answered, it waits for one again."""


class CallWatch(ABC):
    """Follows one call from its arrival to its end."""

    on_output: Sequence[Callable[[str, bytes], None]] = ()
    """Called with stream and bytes as output of the call's program arrives."""

    on_shown: Callable[[Sequence[Part]], object] | None = None
    """Called with the pictures and texts that a run shows to the model, if there are
    any."""

    cancelled_as: CallCancelledError | None = None
    """The error that the record of the call has, once its watcher cancels it."""

    stop: Callable[[], object] | None = None
    """Ends the call, soon after it returns. None: it cannot be ended by itself."""

    @abstractmethod
    def enter(self, stage: CallStage) -> None:
        """Take note that the call is at another stage; before the first it is new."""

    @abstractmethod
    def admit(self, call: ToolCall, seconds: float | None) -> None:
        """Take note that the guard has admitted the call; each attempt tells it.

        Args:
            call: The call as it is made: with valid arguments, and a person's edits.
            seconds: Seconds after which its run is stopped. None: nothing stops it.
        """

    @abstractmethod
    def end(self, status: ToolStatus) -> None:
        """Take note that the call has ended."""


class _NoWatch(CallWatch):
    def enter(self, stage: CallStage) -> None: ...

    def admit(self, call: ToolCall, seconds: float | None) -> None: ...

    def end(self, status: ToolStatus) -> None: ...


NO_WATCH: CallWatch = _NoWatch()
"""The watch of a call that nobody follows."""


class CallWatcher(ABC):
    """Follows each call of an executor, outside of the guard and of all waits.

    It sees also what is refused. A `Hook` sees the run of the tool alone.
    """

    @abstractmethod
    def begin(
        self,
        call: ToolCall,
        run_id: str | None,
        session: str | None,
        stop: Callable[[], object] | None,
    ) -> CallWatch:
        """Return what follows a call, which has just arrived; its `end` is called once.

        A watcher that ends a call sets `cancelled_as`, and then calls `stop`.

        Args:
            call: The call, as it arrived.
            run_id: The agent's run.
            session: The client's session.
            stop: Ends the call, soon after it returns; None: it cannot be ended yet.
        """
