"""What one task has done so far, as it was written down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from toolcell.core import ReplayError

from ..stores.records import (
    Answered,
    Asked,
    Begin,
    Ended,
    Finish,
    JournalRecord,
    Redo,
)

Kind = Literal["call", "model", "once", "interrupt"]


class TaskJournal:
    """The operations of a task by their place, and how the task ended.

    Args:
        task_id: Whose.
        answers: All answers that there are, by the question's id.
    """

    def __init__(self, task_id: str, answers: Mapping[str, Answered]) -> None:
        self.task_id = task_id
        self.answers = answers
        self.begun: dict[str, Begin] = {}
        self.finished: dict[str, Finish] = {}
        """In the order of their ends."""

        self.asked: dict[str, Asked] = {}
        self.repeats: dict[str, int] = {}
        """How often an operation was forgotten."""

        self.ended: Ended | None = None

    def add(self, record: JournalRecord) -> None:
        """Take in what was written down."""
        match record:
            case Begin():
                self.begun[record.op] = record
            case Finish():
                self.finished[record.op] = record
            case Asked():
                self.asked[record.op] = record
            case Redo():
                for op in record.ops:
                    self.begun.pop(op, None)
                    self.finished.pop(op, None)
                    self.asked.pop(op, None)
                    self.repeats[op] = self.repeats.get(op, 0) + 1
                self.ended = None
            case Ended():
                self.ended = record

    @property
    def open(self) -> list[Asked]:
        """The questions that have no answer yet."""
        return [
            each
            for each in self.asked.values()
            if each.interrupt.interrupt_id not in self.answers
        ]

    def knows(self, op: str) -> bool:
        """Return whether something was written down in this place."""
        return op in self.finished or op in self.asked or op in self.begun

    def check(self, op: str, kind: Kind, name: str, digest: str | None) -> None:
        """Look whether what is done now is what was written down here.

        Raises:
            ReplayError: It is something else.
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
        if op in self.begun:
            begun = self.begun[op]
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
    records: Iterable[JournalRecord], answers: Mapping[str, Answered]
) -> dict[str, TaskJournal]:
    """Return the journals of all tasks that have one."""
    found: dict[str, TaskJournal] = {}
    for record in records:
        task = record.task
        found.setdefault(task, TaskJournal(task, answers)).add(record)
    return found
