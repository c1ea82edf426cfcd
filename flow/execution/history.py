"""The past of a thread, by checkpoint, and threads as a list shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import JsonValue

from ..stores.reading import read_checkpoint
from ..stores.records import Checkpoint, GivenAnswer, ThreadHead, ThreadStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """One checkpoint of a thread."""

    checkpoint_id: str
    step: int
    at: datetime
    next_nodes: tuple[str, ...]
    """The nodes of the tasks that came next; empty if a turn ended here."""

    changed: tuple[str, ...]
    """The fields that changed; all of them if the checkpoint holds the whole state."""

    answers: tuple[GivenAnswer, ...]
    """The questions of the step that were answered, and the names of who answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadInfo:
    """One thread, as a list shows it."""

    thread_id: str
    graph: str
    status: ThreadStatus
    checkpoint_id: str
    created: datetime
    updated: datetime
    metadata: Mapping[str, JsonValue]


def checkpoint_info(text: bytes) -> CheckpointInfo:
    """Return the description of a stored checkpoint.

    Raises:
        CheckpointSerializationError: It cannot be read.
    """
    read: Checkpoint = read_checkpoint(text)
    return CheckpointInfo(
        checkpoint_id=read.id,
        step=read.step,
        at=read.at,
        next_nodes=tuple(place.node for place in read.next),
        changed=tuple(sorted(read.patch or read.state or ())),
        answers=tuple(read.answers),
    )


def thread_info(head: ThreadHead) -> ThreadInfo:
    """Return the description of a stored thread."""
    return ThreadInfo(
        thread_id=head.thread_id,
        graph=head.graph,
        status=head.status,
        checkpoint_id=head.checkpoint,
        created=head.created,
        updated=head.updated,
        metadata=head.metadata,
    )
