"""The recorded operations of one task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from toolcell.core import ReplayError

from ..stores.records import (
    AnswerRecord,
    Begin,
    Checkpoint,
    ChildStep,
    Finish,
    JournalRecord,
    QuestionRecord,
    Redo,
    TaskRecord,
)

Kind = Literal["call", "model", "once", "interrupt"]


class TaskJournal:
    """The recorded operations of one task, by place, and the end of the task.

    A node that runs again begins its operations in the same order; the journal gives
    each of them its recorded result, so an operation that ended is not done again
    unless a `Redo` removed it. A call is recorded before it begins and after it ends:
    one that began and has no end is in doubt. A record is added here only after the
    checkpointer has stored it; the commit of the step deletes it there.

    Args:
        task_id: The id of the task, `STEP.PLACE`.
        answers: The answers to the questions of the thread, by the question's id.
    """

    def __init__(self, task_id: str, answers: Mapping[str, AnswerRecord]) -> None:
        self.task_id = task_id
        self.answers = answers
        self.begun: dict[str, Begin] = {}
        self.finished: dict[str, Finish] = {}
        """In the order of their ends."""

        self.asked: dict[str, QuestionRecord] = {}
        self.parked: dict[str, Begin] = {}
        """Calls that were not made because a person has to approve them."""

        self.repeats: dict[str, int] = {}
        """The number of times that a `Redo` removed an operation, by its place."""

        self.ended: TaskRecord | None = None
        self.steps: list[Checkpoint] = []
        """The steps of the graph that the node is, since the last whole one."""

    def add(self, record: JournalRecord) -> None:
        """Add a record that the checkpointer has stored."""
        match record:
            case Begin():
                self.begun[record.op] = record
            case Finish():
                self.finished[record.op] = record
            case QuestionRecord():
                self.asked[record.op] = record
                if record.interrupt.kind == "approval":
                    self.parked[record.op] = self.begun.pop(record.op)
            case Redo():
                for op in record.ops:
                    self.begun.pop(op, None)
                    self.finished.pop(op, None)
                    self.asked.pop(op, None)
                    self.parked.pop(op, None)
                    self.repeats[op] = self.repeats.get(op, 0) + 1
                self.ended = None
            case TaskRecord():
                self.ended = record
            case ChildStep():
                if record.checkpoint.of is None:
                    self.steps.clear()
                self.steps.append(record.checkpoint)

    @property
    def open(self) -> list[QuestionRecord]:
        """The questions that have no answer yet."""
        return [
            question
            for question in self.asked.values()
            if question.interrupt.interrupt_id not in self.answers
        ]

    def knows(self, op: str) -> bool:
        """Return True if an operation, or one of several calls, was recorded there."""
        below = f"{op}/"
        places = self.places()
        return any(place == op or place.startswith(below) for place in places)

    def places(self) -> tuple[str, ...]:
        """Return the places of all operations that were recorded."""
        return *self.finished, *self.asked, *self.begun

    def check(self, op: str, kind: Kind, name: str, digest: str | None) -> None:
        """Check that an operation is the one that was recorded in its place.

        Raises:
            ReplayError: Another operation was recorded there.
        """
        then = self._then(op)
        if then is None or then == (kind, name, digest):
            return
        other = " with other values" if then[:2] == (kind, name) else ""
        raise ReplayError(
            f"task {self.task_id} did {then[0]} {then[1]!r} at {op}, and now does"
            f" {kind} {name!r}{other}",
            hint="a node has to do the same again until it has caught up: take the"
            " time from ctx.started_at, chance from ctx.random; or fork the thread",
            details={"task": self.task_id, "operation": op},
        )

    def _then(self, op: str) -> tuple[str, str, str | None] | None:
        begun = self.begun.get(op) or self.parked.get(op)
        if begun is not None:
            return "call", begun.tool, begun.digest
        if op in self.finished:
            done = self.finished[op]
            return done.kind, done.name, done.digest
        if op in self.asked:
            asked = self.asked[op].interrupt
            return "interrupt", "question", asked.interrupt_id
        return None

    def failures_at_end(self) -> list[str]:
        """Return the operations that failed after the last one that did not."""
        found = []
        for op, each in reversed(self.finished.items()):
            if each.ok:
                break
            found.append(op)
        return found[::-1]


def journals(
    records: Iterable[JournalRecord], answers: Mapping[str, AnswerRecord]
) -> dict[str, TaskJournal]:
    """Return the journals of all tasks that have one."""
    found: dict[str, TaskJournal] = {}
    for record in records:
        task = record.task
        found.setdefault(task, TaskJournal(task, answers)).add(record)
    return found
