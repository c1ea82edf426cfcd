"""The questions of one attempt of a task, and what was answered."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import JsonValue, TypeAdapter

from toolcell.core import (
    FlowLimitError,
    InterruptDeniedError,
    InvalidInputError,
    ToolCall,
    ToolResult,
)
from toolcell.guard import Redactor

from ..stores.records import AnswerRecord
from ..values.interrupt import (
    InterruptException,
    InterruptKind,
    InterruptValue,
    Question,
)
from ..values.json_values import digest, json_bytes, jsonable
from .components import RunComponents
from .journal import TaskJournal

DOUBT_SCHEMA: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "outcome": {"enum": ["done", "failed", "again"]},
        "content": {},
        "message": {"type": "string"},
    },
    "required": ["outcome"],
    "additionalProperties": False,
}
"""The schema of an answer about a call that may or may not have taken effect."""


class Questions:
    """The questions that one attempt of a task asks, and their answers.

    Args:
        parts: The parts that the tasks of the thread share.
        journal: The recorded operations of the task.
        node: The node's name.
    """

    def __init__(self, parts: RunComponents, journal: TaskJournal, node: str) -> None:
        self._parts = parts
        self._journal = journal
        self._node = node
        self.asked: list[InterruptValue] = []
        """The questions that have no answer yet."""

        self.places: dict[str, str] = {}
        """The places of those questions, by question id."""

    def ask(self, op: str, question: Question) -> Any:
        """Return the answer to a question of the node.

        Raises:
            InterruptException: There is none yet.
            InterruptDeniedError: Nobody will give one.
            InvalidInputError: The question has no JSON form.
            FlowLimitError: It is too large.
            ReplayError: Another operation was recorded in this place.
        """
        adapter = None if question.answer is None else TypeAdapter(question.answer)
        try:
            payload, metadata = jsonable(question.payload), jsonable(question.metadata)
            schema = None if adapter is None else adapter.json_schema()
        except ValueError as error:
            raise InvalidInputError(
                f"a question has no JSON form: {error}",
                hint="ask with text, dicts and lists",
            ) from None
        value = self.value(op, payload, schema=schema, metadata=metadata)
        if question.expires_seconds is not None:
            ends = value.created_at + timedelta(seconds=question.expires_seconds)
            value = value.model_copy(update={"expires_at": ends})
        self._journal.check(op, "interrupt", "question", value.interrupt_id)
        answer = self.answer(op, value)
        if answer is None:
            raise InterruptException(self.asked[-1])
        if answer.denied is not None:
            raise InterruptDeniedError(
                f"the question was {answer.denied}",
                hint=answer.reason or None,
                details={"reason": answer.denied, "by": answer.by},
            )
        if adapter is None:
            return answer.value
        return adapter.validate_json(json_bytes(answer.value))

    def value(
        self,
        op: str,
        payload: JsonValue,
        *,
        kind: InterruptKind = "question",
        schema: dict[str, JsonValue] | None = None,
        metadata: dict[str, JsonValue] | None = None,
    ) -> InterruptValue:
        """Return a question of this task, with its id.

        Raises:
            FlowLimitError: It is too large.
        """
        most = self._parts.flow.limits.question_bytes
        if len(json_bytes(payload)) > most:
            raise FlowLimitError(
                f"a question has more than {most} bytes",
                hint="name the place of what is to be read, or raise question_bytes",
                details={"limit": "question_bytes", "value": most},
            )
        thread, task = self._parts.lease.thread_id, self._journal.task_id
        repeats = self._journal.repeats.get(op, 0)
        return InterruptValue(
            interrupt_id="int_" + digest([thread, task, op, kind, payload, repeats]),
            payload=payload,
            node_id=self._node,
            graph_id=self._parts.flow.graph.name,
            created_at=self._parts.flow.clock(),
            metadata=metadata or {},
            thread_id=thread,
            task_id=task,
            kind=kind,
            answer_schema=schema,
        )

    def answer(self, op: str, value: InterruptValue) -> AnswerRecord | None:
        """Return the answer to a question; None: there is none, and it is asked."""
        known = self._journal.asked.get(op)
        same = known is not None and known.interrupt.kind == value.kind
        asked = known.interrupt if known is not None and same else value
        answer = self._journal.answers.get(asked.interrupt_id)
        if answer is None:
            self.asked.append(asked)
            self.places[asked.interrupt_id] = op
        return answer

    def of_approval(
        self, op: str, call: ToolCall, result: ToolResult
    ) -> InterruptValue:
        """Return the question that a call which was parked stands for."""
        assert result.error is not None
        details: Mapping[str, Any] = result.error.details
        request, ends = details["approval_id"], details["expires_at"]
        payload: dict[str, JsonValue] = {
            "question": "may this call be made?",
            "tool": call.name,
            "arguments": jsonable(Redactor()(call.arguments)),
            "request": request,
        }
        value = self.value(op, payload, kind="approval")
        while value.interrupt_id in self._journal.answers:
            # The approval was withdrawn before the call: the request waits again.
            payload = {**payload, "withdrawn": value.interrupt_id}
            value = self.value(op, payload, kind="approval")
        expires_at = datetime.fromtimestamp(ends, UTC)
        more = {"request_id": request, "expires_at": expires_at}
        return value.model_copy(update=more)

    def waits_for_approval(self, op: str) -> bool:
        """Return whether a call waits for a person; if so, the attempt ends."""
        known = self._journal.asked.get(op)
        if known is None or known.interrupt.kind != "approval":
            return False
        asked = known.interrupt
        if asked.interrupt_id in self._journal.answers:
            return False
        self.asked.append(asked)
        self.places[asked.interrupt_id] = op
        return True


def is_parked(result: ToolResult) -> bool:
    """Return whether a call was not made since it waits for a person's approval."""
    if result.status != "denied" or result.error is None:
        return False
    details = result.error.details
    return details.get("reason") == "approval_required" and "approval_id" in details
