"""The questions of one attempt of a task, and what was answered."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import JsonValue, TypeAdapter

from toolcell.core import (
    FlowLimitError,
    InterruptDeniedError,
    InvalidInputError,
)

from ..stores.records import Answered
from ..values.interrupt import (
    InterruptException,
    InterruptKind,
    InterruptValue,
    Question,
)
from ..values.json_values import digest, json_bytes, jsonable
from .journal import TaskJournal
from .parts import RunParts

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

    def __init__(self, parts: RunParts, journal: TaskJournal, node: str) -> None:
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

    def answer(self, op: str, value: InterruptValue) -> Answered | None:
        """Return the answer to a question; None: there is none, and it is asked."""
        known = self._journal.asked.get(op)
        asked = value if known is None else known.interrupt
        answer = self._journal.answers.get(asked.interrupt_id)
        if answer is None:
            self.asked.append(asked)
            self.places[asked.interrupt_id] = op
        return answer
