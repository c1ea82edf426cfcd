"""The events of a thread that runs, as a stream hands them out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import JsonValue

from toolcell.core import ErrorInfo

from .interrupt import InterruptValue


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A step begins, or goes on."""

    step: int
    tasks: tuple[str, ...]
    """The ids of its tasks; those of a graph in a graph begin with their node's."""


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """A node begins an attempt."""

    task_id: str
    node: str
    attempt: int


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call of a tool has a result."""

    task_id: str
    tool: str
    call_id: str
    status: str
    """The `status` of the `ToolResult`."""

    replayed: bool
    """True if it was made in an earlier run of the node."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """A node handed out a value by `ctx.emit`."""

    task_id: str
    node: str
    data: JsonValue


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """A node has returned, asked or failed."""

    task_id: str
    node: str
    status: Literal["done", "asking", "failed"]
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A question was stored."""

    interrupt: InterruptValue


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a question of the step was stored."""

    interrupt_id: str
    by: str


@dataclass(frozen=True, slots=True)
class StepCommitted:
    """The state after a step was stored."""

    step: int
    checkpoint_id: str
    changed: tuple[str, ...]
    """The fields that changed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The run is over: the last event of a stream."""

    result: Any
    """The `FlowResult`."""


FlowEvent = (
    StepStarted
    | TaskStarted
    | CallEnded
    | Emitted
    | TaskEnded
    | Interrupted
    | Answered
    | StepCommitted
    | Ended
)
"""One item of `Flow.stream`; `Ended` is the last."""

Tell = Callable[[FlowEvent], Awaitable[None]]
"""Hands an event to the reader of a stream; it waits while the reader is slow."""
