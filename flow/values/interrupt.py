"""Questions of a node to a person: the call, its exceptions and its records."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

from pydantic import Field, JsonValue

from toolcell.core import FlowError, InvalidInputError
from toolcell.core.models import FrozenModel
from toolcell.core.text.printable import escaped
from toolcell.guard import Redactor

from .json_values import Json, JsonObject

InterruptKind = Literal["question", "doubt", "approval"]
"""`question`: a node asks. `doubt`: nobody knows whether a call took effect.
`approval`: a rule of the guard wants a person to approve a call."""


class InterruptValue(FrozenModel):
    """One question that a thread waits for."""

    interrupt_id: str
    """An id that is bound to thread, task, position and payload, as is its answer."""

    payload: Json
    """The text or JSON value that the person is shown."""

    node_id: str | None = None
    graph_id: str | None = None
    created_at: datetime
    metadata: JsonObject = Field(default_factory=dict)
    """JSON values for the caller's own bookkeeping; not shown."""

    thread_id: str
    task_id: str
    kind: InterruptKind = "question"
    expires_at: datetime | None = None
    """The time from which on it counts as denied; None: never. Of an approval: the time
    from which on it is asked for anew."""

    request_id: str | None = None
    """The request for approval that `toolcell approvals` answers; None: answers come
    by the interrupt's own id."""

    answer_schema: JsonObject | None = None
    """The JSON Schema that the answer has to fit; None: any JSON value."""

    def to_display(self) -> dict[str, JsonValue]:
        """Return it for people: no secrets, nothing that a terminal would obey."""
        shown = self.model_dump(mode="json", exclude={"metadata"})
        hide = Redactor()
        return {key: _safe(hide(value)) for key, value in shown.items()}


def _safe(value: Any) -> JsonValue:
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, Mapping):
        return {escaped(str(key)): _safe(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(inner) for inner in value]
    return value  # type: ignore[no-any-return]


class InterruptState(FrozenModel):
    """A question, and the progress of its step."""

    interrupt: InterruptValue
    node_id: str
    """The node that asks, and runs again once it is answered."""

    pending_nodes: list[str]
    """Nodes of the step that have not returned, the asking one included."""

    partial_results: JsonObject = Field(default_factory=dict)
    """The updates or results of the tasks that have returned, by task id."""


class InterruptException(BaseException):
    """Pauses a thread. Raised by `interrupt`; not for you to catch.

    It is no `Exception`, so that `except Exception` does not catch it. A node that
    catches it all the same pauses too, and its output is dropped.
    """

    def __init__(self, value: InterruptValue) -> None:
        super().__init__(value.interrupt_id)
        self.value = value


class GraphInterrupted(FlowError):
    """A thread waits for answers.

    Args:
        interrupts: The questions, with all that is needed to resume.
        thread_id: The thread.
        checkpoint_id: The id of its latest checkpoint.
    """

    kind = "flow.interrupted"

    def __init__(
        self, interrupts: tuple[InterruptState, ...], thread_id: str, checkpoint_id: str
    ) -> None:
        ids = [each.interrupt.interrupt_id for each in interrupts]
        super().__init__(
            f"the thread waits for {len(ids)} answers",
            hint="flow.resume(thread_id, {interrupt_id: answer})",
            details={"thread": thread_id, "interrupts": ids},
        )
        self.interrupts = interrupts
        self.checkpoint_id = checkpoint_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question as the node asks it."""

    payload: Any
    answer: Any
    expires_seconds: float | None
    key: str | None
    metadata: Mapping[str, Any]


class Asker(Protocol):
    """A task that runs, as helpers of its node find it."""

    def ask(self, question: Question) -> Any:
        """Return the answer, or raise InterruptException."""
        ...

    def send_id(self) -> str:
        """Return an id for a Send that is the same in every run of the task."""
        ...


current: ContextVar[Asker | None] = ContextVar("current", default=None)
"""The task whose node runs here; None outside of nodes."""

inside_tool: ContextVar[bool] = ContextVar("inside_tool", default=False)
"""True in a tool that a node has called."""


def interrupt(
    payload: Any,
    *,
    answer: Any = None,
    expires_seconds: float | None = None,
    key: str | None = None,
    **metadata: Any,
) -> Any:
    """Ask a person, and return the answer.

    Without an answer the thread pauses here, and may go on in another process, days
    later. The node then runs again from its first line: operations of its context are
    not done again, and each question gets its own answer, by its position.

    Args:
        payload: The text, dict or other JSON value that the person is shown.
        answer: A type that the answer has to fit; it is returned as one. None: any
            JSON value.
        expires_seconds: Seconds after which it counts as denied. None: never.
        key: Needed in a task group of the node, where positions are not the same in
            each run: 1 to 64 characters, once per task.
        **metadata: For your own bookkeeping, JSON values; not shown.

    Raises:
        InterruptDeniedError: It was denied, or has expired.
        InvalidInputError: This is no node, or the payload has no JSON form.
    """
    if inside_tool.get():
        raise InvalidInputError(
            "a tool cannot interrupt a thread",
            hint="ask in the node before the call, or have a rule ask for the tool",
        )
    asker = current.get()
    if asker is None:
        raise InvalidInputError(
            "interrupt() is for nodes of a graph that runs",
            hint="call it in a node; threads of your own need a copy of its context",
        )
    question = Question(
        payload=payload,
        answer=answer,
        expires_seconds=expires_seconds,
        key=key,
        metadata=metadata,
    )
    return asker.ask(question)
