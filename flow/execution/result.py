"""The result of one run or resume of a thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel

from toolcell.core import ErrorInfo, FlowError, NodeFailedError, ToolcellError

from ..values.interrupt import GraphInterrupted, InterruptState, InterruptValue

S = TypeVar("S", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowResult(Generic[S]):
    """The status and state of a thread; a failure is a value here, not an exception."""

    thread_id: str
    status: Literal["done", "interrupted", "failed", "cancelled"]
    state: S
    """The state after the last step that was committed."""

    checkpoint_id: str
    waiting: tuple[InterruptState, ...] = ()
    """The open questions, each with the progress of its step."""

    error: ErrorInfo | None = None
    """The reason of its failure, as it is stored; None if it did not fail."""

    exception: ToolcellError | None = None
    """The error itself, with its cause; None if an earlier run failed."""

    @property
    def interrupts(self) -> tuple[InterruptValue, ...]:
        """The open questions."""
        return tuple(question.interrupt for question in self.waiting)

    def unwrap(self) -> S:
        """Return the state of a thread that is done.

        Raises:
            GraphInterrupted: It waits for answers.
            ToolcellError: It failed: NodeFailedError, or what `error.kind` names.
            FlowError: It was cancelled.
        """
        if self.status == "done":
            return self.state
        if self.status == "interrupted":
            raise GraphInterrupted(self.waiting, self.thread_id, self.checkpoint_id)
        if self.status == "cancelled":
            raise FlowError(
                "the thread was cancelled",
                hint="fork it to go on from one of its checkpoints",
                details={"thread": self.thread_id},
            )
        if self.exception is not None:
            raise self.exception
        details: dict[str, Any] = {} if self.error is None else self.error.details
        message = "the thread failed" if self.error is None else self.error.message
        raise NodeFailedError(
            message, hint="resume the thread to try again", details=details
        )
