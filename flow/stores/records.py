"""The stored records of a thread: its head, checkpoints, and the journal of a step.

Each record is one JSON object with a version and a type. A higher version, an unknown
key or a value that does not fit is an error: nothing is guessed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Literal

from pydantic import (
    ConfigDict,
    Field,
    JsonValue,
)

from toolcell.core import (
    CheckpointSerializationError,
    ErrorInfo,
    ToolCall,
    ToolcellError,
    ToolResult,
)
from toolcell.core.models import FrozenModel, construct_unchecked

from ..values.interrupt import InterruptValue
from ..values.json_values import json_bytes
from ..values.send import Send, SendBatch, SendResult

VERSION = 1
"""The version of the records that are written."""

ThreadStatus = Literal["running", "interrupted", "failed", "done", "cancelled"]


class Record(FrozenModel):
    """One stored value, with its version."""

    model_config = ConfigDict(ser_json_inf_nan="constants")
    refusal: ClassVar[type[ToolcellError]] = CheckpointSerializationError

    v: Literal[1] = 1

    def to_bytes(self) -> bytes:
        """Return its text.

        Raises:
            CheckpointSerializationError: It holds what JSON cannot.
        """
        return self._text()

    def _text(self, without: set[str] | None = None) -> bytes:
        try:
            text = self.model_dump_json(exclude=without).encode()
            if b"NaN" in text or b"Infinity" in text:
                # Refused where it is a number, and kept where it is text.
                text = json_bytes(self.model_dump(mode="json", exclude=without))
        except ValueError as error:
            raise CheckpointSerializationError(
                f"a record cannot be written: {error}", hint="use values that JSON has"
            ) from error
        return text


class TaskSpec(FrozenModel):
    """One node in one step, before it runs."""

    node: str
    send: Send | None = None
    batch: int | None = None
    """The batch of the step that it works for."""

    results: list[SendResult] | None = None
    """The results that an aggregator gets; None: it is no aggregator."""

    @classmethod
    def plain(cls, node: str) -> TaskSpec:
        """Return the task of a node that gets no more than the state."""
        fields = {"node": node, "send": None, "batch": None, "results": None}
        return construct_unchecked(cls, fields, {"node"})


class Batch(FrozenModel):
    """Workers of a step whose results are collected."""

    aggregator: str
    on_failure: Literal["fail", "collect"]
    min_success: int | float | None


class GivenAnswer(FrozenModel):
    """One question of a step that was answered, without the answer."""

    id: str
    node: str
    by: str
    how: str


class Checkpoint(Record):
    """A thread between two steps."""

    type: Literal["checkpoint"] = "checkpoint"
    id: str
    step: int
    at: datetime
    turn: int = 1
    """The number of times that `run` has begun the thread."""

    of: str | None = None
    """The checkpoint that `patch` changes; None: `state` is whole."""

    patch: dict[str, JsonValue] | None = None
    state: dict[str, JsonValue] | None = None
    next: list[TaskSpec]
    joins: dict[str, list[str]] = Field(default_factory=dict)
    batches: list[Batch] = Field(default_factory=list)
    answers: list[GivenAnswer] = Field(default_factory=list)

    @classmethod
    def after(
        cls,
        before: Checkpoint,
        at: datetime,
        *,
        whole: bool,
        tasks: list[TaskSpec],
        joins: dict[str, list[str]],
        batches: list[Batch],
        answers: list[GivenAnswer],
    ) -> Checkpoint:
        """Return the next checkpoint of a thread, without its patch or state.

        Args:
            before: The checkpoint before it.
            at: The time of the commit.
            whole: True if it holds the whole state, False if it is a patch.
            tasks: The tasks of the next step; `joins`, `batches` and `answers`.
        """
        number = before.step + 1
        fields = {
            "v": VERSION,
            "type": "checkpoint",
            "id": str(number),
            "step": number,
            "at": at,
            "turn": before.turn,
            "of": None if whole else before.id,
            "patch": None,
            "state": None,
            "next": tasks,
            "joins": joins,
            "batches": batches,
            "answers": answers,
        }
        return construct_unchecked(cls, fields, set(fields))

    def with_fields(self, fields: Mapping[str, bytes]) -> bytes:
        """Return its text with the patch or state put in as texts."""
        rest = self._text(without={"patch", "state"})
        name = b"state" if self.of is None else b"patch"
        inner = b",".join(json_bytes(k) + b":" + fields[k] for k in sorted(fields))
        return rest[:-1] + b',"%s":{%s}}' % (name, inner)


class ThreadHead(Record):
    """A thread as a whole."""

    type: Literal["head"] = "head"
    thread_id: str
    graph: str
    version: str
    shape: str
    agent: str | None
    status: ThreadStatus
    checkpoint: str
    """The latest one's id."""

    error: ErrorInfo | None = None
    expires: datetime | None = None
    """Of a paused thread: the time at which the first of its questions expires."""

    requests: int = 0
    """Of a paused thread: those of its questions that are requests for approval."""

    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    created: datetime
    updated: datetime

    def at(self, checkpoint: Checkpoint, version: str, shape: str) -> ThreadHead:
        """Return the head of the thread once a checkpoint was added.

        Args:
            checkpoint: The checkpoint.
            version: The version of the graph that runs.
            shape: The shape of that graph.
        """
        fields = {
            **self.__dict__,
            "status": "running" if checkpoint.next else "done",
            "checkpoint": checkpoint.id,
            "version": version,
            "shape": shape,
            "error": None,
            "expires": None,
            "requests": 0,
            "updated": checkpoint.at,
        }
        return construct_unchecked(ThreadHead, fields, set(fields))


class Begin(Record):
    """A call is about to be made."""

    type: Literal["begin"] = "begin"
    task: str
    op: str
    tool: str
    digest: str
    call_id: str
    at: datetime

    @classmethod
    def of(cls, task: str, op: str, call: ToolCall, digest: str, at: datetime) -> Begin:
        """Return the record of a call that was checked."""
        fields = {
            "v": VERSION,
            "type": "begin",
            "task": task,
            "op": op,
            "tool": call.name,
            "digest": digest,
            "call_id": call.id,
            "at": at,
        }
        return construct_unchecked(cls, fields, set(fields))


class Finish(Record):
    """An operation has ended, with this value."""

    type: Literal["end"] = "end"
    task: str
    op: str
    kind: Literal["call", "model", "once"]
    name: str
    digest: str | None = None
    value: JsonValue
    ok: bool = True

    @classmethod
    def of(cls, task: str, op: str, digest: str, result: ToolResult) -> Finish:
        """Return the record of the result of a call."""
        fields = {
            "v": VERSION,
            "type": "end",
            "task": task,
            "op": op,
            "kind": "call",
            "name": result.name,
            "digest": digest,
            "value": result.model_dump(mode="json"),
            "ok": result.ok,
        }
        return construct_unchecked(cls, fields, set(fields))


class Redo(Record):
    """Operations whose records no longer count, so that they are done again."""

    type: Literal["redo"] = "redo"
    task: str
    ops: list[str]


class QuestionRecord(Record):
    """A question of a task."""

    type: Literal["asked"] = "asked"
    task: str
    op: str
    interrupt: InterruptValue


class Output(FrozenModel):
    """The output of a task, as the step takes it."""

    update: dict[str, JsonValue] = Field(default_factory=dict)
    goto: list[str | Send] | None = None
    ends: bool = False
    """True if it ends the thread."""

    replaces: bool = False
    """True if the update replaces fields that have a reducer."""

    graph: str | None = None
    """The enclosing graph whose node this is the output of; None: its own."""

    batch: SendBatch | None = None
    result: JsonValue = None
    """The value that a worker of a batch returned."""

    @classmethod
    def steering(
        cls, goto: list[str | Send] | None, *, ends: bool, graph: str | None
    ) -> Output:
        """Return an output without update or result, of targets that were checked."""
        fields: dict[str, Any] = {
            "update": {},
            "goto": goto,
            "ends": ends,
            "replaces": False,
            "graph": graph,
            "batch": None,
            "result": None,
        }
        return construct_unchecked(cls, fields, set(fields))


class TaskRecord(Record):
    """A task of the step is over."""

    type: Literal["task"] = "task"
    task: str
    status: Literal["done", "failed"]
    output: Output | None = None
    error: ErrorInfo | None = None
    ms: float


class ChildStep(Record):
    """A graph that is the node of a task has made a step."""

    type: Literal["child"] = "child"
    task: str
    checkpoint: Checkpoint


class AnswerRecord(Record):
    """An answer, or a refusal to give one."""

    type: Literal["answered"] = "answered"
    id: str
    value: JsonValue = None
    denied: Literal["denied", "expired"] | None = None
    reason: str = ""
    by: str
    how: str
    at: datetime
    update: dict[str, JsonValue] = Field(default_factory=dict)
    """An update of the state, merged when the step commits."""


JournalRecord = Begin | Finish | Redo | QuestionRecord | TaskRecord | ChildStep


def chained(before: bytes, text: bytes) -> bytes:
    """Return the checksum of a row that follows another.

    It finds a row that was changed, lost or moved. It is no signature.
    """
    return hashlib.blake2b(before + text, digest_size=8).digest()
