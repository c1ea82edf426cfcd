"""What was: the checkpoints of a thread, and threads as a list shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import JsonValue

from ..stores.records import (
    Checkpoint,
    GivenAnswer,
    Head,
    ThreadStatus,
    read_checkpoint,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """One checkpoint of a thread."""

    checkpoint_id: str
    step: int
    at: datetime
    next_nodes: tuple[str, ...]
    """The tasks that came next; none: a turn ended here."""

    changed: tuple[str, ...]
    """The fields that changed. Of a checkpoint that holds all of the state: all."""

    answers: tuple[GivenAnswer, ...]
    """Who answered which question of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadInfo:
    """One thread, as a list shows it."""

    thread_id: str
    status: ThreadStatus
    checkpoint_id: str
    created: datetime
    updated: datetime
    metadata: Mapping[str, JsonValue]


def checkpoint_info(text: bytes) -> CheckpointInfo:
    """Return what a record of a checkpoint says.

    Raises:
        CheckpointSerializationError: It cannot be read.
    """
    read: Checkpoint = read_checkpoint(text)
    return CheckpointInfo(
        checkpoint_id=read.id,
        step=read.step,
        at=read.at,
        next_nodes=tuple(each.node for each in read.next),
        changed=tuple(sorted(read.patch or read.state or ())),
        answers=tuple(read.answers),
    )


def thread_info(head: Head) -> ThreadInfo:
    """Return what a head says."""
    return ThreadInfo(
        thread_id=head.thread_id,
        status=head.status,
        checkpoint_id=head.checkpoint,
        created=head.created,
        updated=head.updated,
        metadata=head.metadata,
    )
