"""Stores of threads, as `CheckpointerProtocol` and its optional words have them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

import anyio

from toolcell.core import (
    CheckpointerCapabilities,
    CheckpointNotFoundError,
    InvalidInputError,
    ThreadBusyError,
)

from .base import Lease, Stored, ThreadStore
from .reading import read_checkpoint
from .records import Checkpoint, ThreadHead, ThreadStatus
from .saved_states import (
    NO_GRAPH,
    check_ended,
    check_latest,
    copied_head,
    is_old,
    saved_fields,
    saved_head,
    taken_thread,
)

_PAGE = 200


class Checkpointer(ThreadStore):
    """Stores threads, and with them states that no Flow runs.

    Your own store implements the abstract methods; their docstrings are its
    promises. The other ones are made of them.
    """

    def __init__(self) -> None:
        self._saving = anyio.Lock()

    @property
    def capabilities(self) -> CheckpointerCapabilities:
        """The optional features of `CheckpointerProtocol` that it has."""
        return CheckpointerCapabilities(
            vacuum=True,
            branching=True,
            list_threads=True,
            persistent_checkpoint_ids=self.durable,
        )

    async def save(
        self,
        state: Any,
        thread_id: str,
        checkpoint_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        after: str | None = None,
    ) -> str:
        """Store a state that no Flow runs; see `CheckpointerProtocol.save`.

        Raises:
            CheckpointError: As there, or the id is taken.
            CheckpointSerializationError: As there.
            InvalidInputError: A Flow runs this thread.
            ThreadBusyError: Another process saves in it right now.
        """
        fields = saved_fields(state, metadata)
        new_id, now = checkpoint_id or secrets.token_hex(8), datetime.now(UTC)
        head = saved_head(thread_id, new_id, now)
        async with self._saving:
            stored = await _saved(self, thread_id)
            if stored is None:
                check_latest(after, None)
                first = Checkpoint(id=new_id, step=0, at=now, state=fields, next=[])
                lease = await self.create(head, first.to_bytes())
            else:
                lease = await self.claim(thread_id)
            try:
                if stored is not None:
                    await _save_next(self, lease, head, fields, after)
            finally:
                await _release(self, lease)
        return new_id

    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> Any:
        """Return a saved state; see `CheckpointerProtocol.load`.

        Raises:
            CheckpointSerializationError: As there.
            InvalidInputError: A Flow runs this thread.
        """
        try:
            stored = await _saved(self, thread_id, checkpoint_id)
        except CheckpointNotFoundError:
            return None
        if stored is None:
            return None
        return (read_checkpoint(stored.checkpoints[-1]).state or {})["saved"]

    async def list_checkpoints(
        self, thread_id: str, limit: int = 10, *, before: str | None = None
    ) -> list[str]:
        """Return ids, newest first; see `CheckpointerProtocol.list_checkpoints`."""
        texts = await self.checkpoints(thread_id, limit, before)
        return [read_checkpoint(text).id for text in texts]

    async def exists(self, thread_id: str, checkpoint_id: str | None = None) -> bool:
        """Return whether there is a thread, or one of its checkpoints."""
        if checkpoint_id is None:
            return bool(await self.checkpoints(thread_id, 1))
        try:
            return await self.read(thread_id, checkpoint_id) is not None
        except CheckpointNotFoundError:
            return False

    async def list_threads(
        self, limit: int = 100, pattern: str = "*", *, before: str | None = None
    ) -> list[str]:
        """Return the ids of threads, those of saved states included, as `heads` does.

        Args:
            limit: As in `heads`, as is `before`.
            pattern: A pattern of ids as in a shell, such as `order-*`.
            before: As in `heads`.
        """
        found: list[str] = []
        while len(found) < limit:
            heads = await self.heads(limit=_PAGE, before=before)
            ids = [head.thread_id for head in heads]
            found += [thread_id for thread_id in ids if fnmatchcase(thread_id, pattern)]
            if len(heads) < _PAGE:
                break
            before = ids[-1]
        return found[:limit]

    async def copy_thread(self, source: str, target: str) -> None:
        """Copy a thread that has ended, with its whole history.

        Until the copy is whole it counts as cancelled; it remains so if the process
        dies meanwhile.

        Args:
            source: The id of the thread.
            target: The id of the copy.

        Raises:
            CheckpointNotFoundError: There is no such thread.
            CheckpointError: The id of the copy is taken.
            InvalidInputError: The thread has not ended.
            ThreadBusyError: Somebody runs it.
        """
        lease = await self.claim(source)
        try:
            stored = await self.read(source)
            assert stored is not None
            check_ended(stored.head)
            texts = await history(self, source)
            await write_copy(self, stored.head, texts, target)
        finally:
            await _release(self, lease)

    async def vacuum(self, older_than_days: float = 30.0) -> int:
        """Delete threads that have ended, and saved states; return their number.

        The space is used by new threads; a file does not shrink.

        Args:
            older_than_days: Days since the last change of a thread; default 30. One
                that has changed since stays.
        """
        before = datetime.now(UTC) - timedelta(days=older_than_days)
        return len(await self.delete_ended(before))

    async def delete_ended(
        self, before: datetime, *, saved_states: bool = True
    ) -> list[str]:
        """Delete threads that are done or were cancelled; return their ids.

        A failed one stays, since it can be resumed, and so does one that has an owner.

        Args:
            before: The time, with its zone, since which a deleted thread has not
                changed.
            saved_states: False: only threads that a Flow ran.
        """
        deleted = []
        for head in await self.every_head():
            if is_old(head, before) and (saved_states or head.graph != NO_GRAPH):
                now = await self.read(head.thread_id)
                # It may have been run again, or deleted, in the meantime.
                if now is not None and is_old(now.head, before):
                    with suppress(ThreadBusyError):
                        if await self.delete(head.thread_id):
                            deleted.append(head.thread_id)
        return deleted

    async def every_head(
        self, *, graph: str | None = None, status: ThreadStatus | None = None
    ) -> list[ThreadHead]:
        """Return all threads of a graph and a status, the last changed first."""
        found: list[ThreadHead] = []
        while True:
            before = found[-1].thread_id if found else None
            heads = await self.heads(
                graph=graph, status=status, limit=_PAGE, before=before
            )
            found += heads
            if len(heads) < _PAGE:
                return found


async def _save_next(
    store: ThreadStore,
    lease: Lease,
    head: ThreadHead,
    fields: dict[str, Any],
    after: str | None,
) -> None:
    stored = await _saved(store, head.thread_id)
    assert stored is not None
    check_latest(after, stored.head.checkpoint)
    step = read_checkpoint(stored.checkpoints[-1]).step + 1
    checkpoint = Checkpoint(
        id=head.checkpoint, step=step, at=head.updated, state=fields, next=[]
    )
    await store.commit(lease, checkpoint.to_bytes(), head, whole=True)


async def write_copy(
    store: ThreadStore, head: ThreadHead, texts: Sequence[bytes], target: str
) -> None:
    """Write the checkpoints of a thread, the oldest first, to another one."""
    copies = [copied_head(head, target, read_checkpoint(text)) for text in texts]
    try:
        lease = await store.create(copies[0], texts[0])
    except ThreadBusyError:
        raise taken_thread(target) from None
    try:
        for text, copy in zip(texts[1:], copies[1:], strict=True):
            whole = read_checkpoint(text).of is None
            await store.commit(lease, text, copy, whole=whole)
        done = copies[-1].model_copy(update={"status": head.status})
        await store.append(lease, [], done)
    finally:
        await _release(store, lease)


async def history(store: ThreadStore, thread_id: str) -> list[bytes]:
    """Return all checkpoints of a thread, the oldest first."""
    found: list[bytes] = []
    while True:
        before = read_checkpoint(found[-1]).id if found else None
        texts = await store.checkpoints(thread_id, _PAGE, before)
        found += texts
        if len(texts) < _PAGE:
            return found[::-1]


async def _release(store: ThreadStore, lease: Lease) -> None:
    with anyio.CancelScope(shield=True):
        await store.release(lease)


async def _saved(
    store: ThreadStore, thread_id: str, checkpoint_id: str | None = None
) -> Stored | None:
    stored = await store.read(thread_id, checkpoint_id)
    if stored is not None and stored.head.graph != NO_GRAPH:
        raise InvalidInputError(
            "a Flow runs this thread",
            hint="use flow.state(thread_id), or another id",
            details={"thread": thread_id},
        )
    return stored
