"""States that no Flow runs, and threads that have ended, as values."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from toolcell.core import (
    CheckpointError,
    CheckpointSerializationError,
    InvalidInputError,
)

from ..values.json_values import jsonable
from .records import Checkpoint, ThreadHead

NO_GRAPH: Final = ""
"""The graph of threads that are no more than saved states."""

_ENDED = ("done", "cancelled")


def saved_fields(state: Any, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a checkpoint holds of a saved state.

    Raises:
        CheckpointSerializationError: It is no JSON.
    """
    try:
        return {"saved": jsonable(state), "metadata": jsonable(dict(metadata or {}))}
    except ValueError as error:
        raise CheckpointSerializationError(
            f"the state cannot be written: {error}", hint="use values that JSON has"
        ) from None


def saved_head(thread_id: str, checkpoint_id: str, now: datetime) -> ThreadHead:
    """Return the head of a thread of saved states."""
    return ThreadHead(
        thread_id=thread_id,
        graph=NO_GRAPH,
        version="",
        shape="",
        agent=None,
        status="done",
        checkpoint=checkpoint_id,
        created=now,
        updated=now,
    )


def check_latest(after: str | None, latest: str | None) -> None:
    """Check that no checkpoint came in between. Raises CheckpointError: one did."""
    if after is not None and after != latest:
        raise CheckpointError(
            "another checkpoint came in between",
            hint="load the latest one, and decide again",
            details={"latest": latest},
        )


def check_ended(head: ThreadHead) -> None:
    """Check that a thread may be copied. Raises InvalidInputError: it has not ended."""
    if head.status not in _ENDED:
        raise InvalidInputError(
            f"the thread is {head.status}, and a step that runs is not copied",
            hint="flow.fork begins a new thread at any of its checkpoints",
            details={"thread": head.thread_id},
        )


def copied_head(head: ThreadHead, thread_id: str, checkpoint: Checkpoint) -> ThreadHead:
    """Return the head of a copy of a thread that has come to a checkpoint."""
    copied = {"thread_id": thread_id, "checkpoint": checkpoint.id}
    return head.model_copy(update={**copied, "status": "cancelled"})


def taken_thread(thread_id: str) -> CheckpointError:
    """Return the error for the id of a copy that is in use."""
    return CheckpointError(
        "there is a thread of this id",
        hint="give the copy its own id",
        details={"thread": thread_id},
    )


def is_old(head: ThreadHead, before: datetime) -> bool:
    """Return whether a thread has ended, and has not changed since a time."""
    return head.status in _ENDED and head.updated < before
