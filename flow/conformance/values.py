"""The values that checks write, and how they tell what is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any

from ..stores.base import Lease
from ..stores.checkpointer import Checkpointer
from ..stores.records import Checkpoint, ThreadHead

OpenOne = Callable[[], AbstractAsyncContextManager[Checkpointer]]
"""Opens a new instance on the same storage."""

AT = datetime(2026, 1, 2, tzinfo=UTC)


def require(promise: object, broken: str) -> None:
    """Raise AssertionError, and say what is broken, unless a promise holds."""
    if not promise:
        raise AssertionError(broken)


@contextmanager
def refused(kind: type[Exception], broken: str) -> Iterator[None]:
    """Raise AssertionError unless the block raises an error of a kind."""
    try:
        yield
    except kind:
        return
    raise AssertionError(broken)


def head(thread_id: str, checkpoint: str = "0", **more: Any) -> ThreadHead:
    """Return the head of a thread."""
    known: dict[str, Any] = {
        "thread_id": thread_id,
        "graph": "checked",
        "version": "1",
        "shape": "s",
        "agent": None,
        "status": "running",
        "checkpoint": checkpoint,
        "created": AT,
        "updated": AT,
    }
    return ThreadHead(**{**known, **more})


def checkpoint(number: int, *, of: str | None = None) -> bytes:
    """Return the text of a checkpoint; None: one of a whole state."""
    made = Checkpoint(id=str(number), step=number, at=AT, of=of, next=[])
    return made.with_fields({"note": b'["=",1]' if of else b"1"})


def numbered(number: int) -> bytes:
    """Return a checkpoint of a thread in which the first and the third are whole."""
    return checkpoint(number, of=None if number in (0, 3) else str(number - 1))


async def commit(
    store: Checkpointer, lease: Lease, number: int, *, whole: bool = False
) -> None:
    """Commit a checkpoint."""
    text = checkpoint(number, of=None if whole else str(number - 1))
    newer = head(lease.thread_id, str(number))
    await store.commit(lease, text, newer, whole=whole)
