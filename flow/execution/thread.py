"""A thread as read from its store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any

from toolcell.core import CheckpointSerializationError

from ..graph.graph import Graph, migrated
from ..state.patch import Pieces, apply, split, value_of
from ..state.state import State
from ..stores.base import Stored
from ..stores.reading import read_answer, read_checkpoint, read_journal
from ..stores.records import AnswerRecord, Checkpoint, ThreadHead
from ..values.interrupt import InterruptState, InterruptValue
from .journal import TaskJournal, journals


@dataclass(slots=True, kw_only=True)
class ThreadView:
    """A thread at one checkpoint, and the progress of its next step."""

    head: ThreadHead
    checkpoint: Checkpoint
    state: State
    journals: dict[str, TaskJournal]
    answers: dict[str, AnswerRecord]
    patches: int = 0
    """The number of checkpoints since the last one that holds the whole state."""

    patch_bytes: int = 0
    """The size of those checkpoints together, in bytes."""

    whole_bytes: int = 0
    """The size of the last whole one, in bytes; 0: the next one has to be whole."""

    prefix: str = ""
    """The beginning of the ids of its tasks; of an inner graph its task and `/`."""

    def journal(self, task_id: str) -> TaskJournal:
        """Return the journal of a task of the next step."""
        if task_id not in self.journals:
            self.journals[task_id] = TaskJournal(task_id, self.answers)
        return self.journals[task_id]

    def task_ids(self) -> list[str]:
        """Return the ids of the next step's tasks, in their order."""
        step = self.checkpoint.step + 1
        count = len(self.checkpoint.next)
        return [f"{self.prefix}{step}.{place}" for place in range(count)]

    def open_questions(self) -> list[InterruptValue]:
        """Return the questions without an answer, in the order of the tasks."""
        asking = [journal for journal in self.journals.values() if journal.asked]
        if not asking:
            return []
        found = [
            (_places(journal.task_id), operation.interrupt)
            for journal in asking
            if journal.task_id.startswith(self.prefix)
            for operation in journal.open
        ]
        return [question for _, question in sorted(found, key=itemgetter(0))]

    def waiting_tasks(self) -> set[str]:
        """Return the ids of the step's tasks that wait for answers."""
        asking = self.open_questions()
        if not asking:
            return set()
        ids = (journal.task_id[len(self.prefix) :] for journal in asking)
        return {self.prefix + task_id.partition("/")[0] for task_id in ids}

    def expired_questions(self, now: datetime) -> list[InterruptValue]:
        """Return the open questions whose time is over; approvals have their own."""
        return [
            question
            for question in self.open_questions()
            if question.expires_at is not None
            and question.expires_at <= now
            and question.request_id is None
        ]

    def interrupt_states(self) -> tuple[InterruptState, ...]:
        """Return the open questions, each with the progress of the step."""
        pending, partial = [], {}
        for task_id, spec in zip(self.task_ids(), self.checkpoint.next, strict=True):
            journal = self.journals.get(task_id)
            ended = None if journal is None else journal.ended
            if ended is None or ended.status != "done":
                pending.append(spec.node)
            elif ended.output is not None:
                output = ended.output
                partial[task_id] = (
                    output.result if spec.batch is not None else (output.update)
                )
        return tuple(
            InterruptState(
                interrupt=question,
                node_id=question.node_id or "",
                pending_nodes=pending,
                partial_results=partial,
            )
            for question in self.open_questions()
        )


def _places(task_id: str) -> list[int]:
    return [int(number) for number in task_id.replace("/", ".").split(".")]


def view_of(stored: Stored, graph: Graph[Any]) -> ThreadView:
    """Return a thread as its graph sees it.

    Raises:
        CheckpointSerializationError: The stored thread does not fit the graph.
    """
    checkpoints = [read_checkpoint(text) for text in stored.checkpoints]
    latest = checkpoints[-1]
    head = stored.head
    if head.graph != graph.name:
        raise CheckpointSerializationError(
            f"the thread is one of the graph {head.graph!r}",
            hint="resume it with a Flow of that graph",
            details={"thread": head.thread_id},
        )
    pieces = folded(checkpoints)
    state = _state(graph, head, pieces, latest)
    answers = {answer.id: answer for answer in map(read_answer, stored.answers)}
    records = [read_journal(text) for text in stored.journal]
    sizes = [len(text) for text in stored.checkpoints]
    return ThreadView(
        head=head,
        checkpoint=latest,
        state=state,
        journals=journals(records, answers),
        answers=answers,
        patches=len(sizes) - 1,
        patch_bytes=sum(sizes[1:]),
        # A patch changes the stored state, not one that was migrated.
        whole_bytes=sizes[0] if state.pieces == pieces else 0,
    )


def state_of(
    graph: Graph[Any], head: ThreadHead, checkpoints: Sequence[Checkpoint]
) -> State:
    """Return the state of a graph in a graph, which is not migrated.

    Raises:
        CheckpointSerializationError: The stored steps do not fit the graph.
    """
    same = head.model_copy(update={"version": graph.version})
    return _state(graph, same, folded(checkpoints), checkpoints[-1])


def folded(checkpoints: Sequence[Checkpoint]) -> dict[str, Pieces]:
    """Return the fields of the state that checkpoints make, from a whole one on.

    Raises:
        CheckpointSerializationError: One changes another than the one before it.
    """
    pieces: dict[str, Pieces] = {}
    before = None
    try:
        for checkpoint in checkpoints:
            if checkpoint.of is None:
                pieces = {
                    name: split(v) for name, v in (checkpoint.state or {}).items()
                }
            elif checkpoint.of != before:
                raise ValueError("a checkpoint changes another than the one before it")
            else:
                for name, patch in (checkpoint.patch or {}).items():
                    pieces[name] = apply(pieces.get(name), patch)
            before = checkpoint.id
    except ValueError as error:
        raise CheckpointSerializationError(
            f"the checkpoints do not make a state: {error}",
            hint="restore the store from a copy, or delete the thread",
        ) from error
    return pieces


def _state(
    graph: Graph[Any],
    head: ThreadHead,
    pieces: Mapping[str, Pieces],
    latest: Checkpoint,
) -> State:
    missing = [spec.node for spec in latest.next if spec.node not in graph.nodes]
    if missing:
        raise _unfit(head, f"the graph has no node {missing[0]!r} any more")
    if head.version != graph.version and graph.migrate is not None:
        older = {name: value_of(piece) for name, piece in pieces.items()}
        newer = migrated(graph, older, head.version)
        pieces = {name: split(value) for name, value in newer.items()}
    complete = dict(pieces)
    model = graph.schema.model
    for name, field in graph.schema.fields.items():
        info = model.model_fields[name]
        if name not in complete and not info.is_required():
            complete[name] = field.encode(info.get_default(call_default_factory=True))
    state = State(graph.schema, complete)
    try:
        state.view()
    except ValueError as error:
        raise _unfit(head, str(error)) from error
    return state


def _unfit(head: ThreadHead, why: str) -> CheckpointSerializationError:
    return CheckpointSerializationError(
        f"the thread does not fit the graph: {why}",
        hint="give the graph a `migrate`, or run the version that wrote it",
        details={"thread": head.thread_id, "version": head.version},
    )
