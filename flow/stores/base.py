"""The contract of stores of threads: one writer each, and whole writes only."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

import anyio

from toolcell.core import (
    CheckpointerCapabilities,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    InvalidInputError,
)

from ..values.json_values import jsonable
from .records import Checkpoint, Head, ThreadStatus, read_checkpoint

_NO_GRAPH = ""
"""The graph of threads that are no more than saved states."""


class Lease(NamedTuple):
    """The right to write a thread; its token is higher than that of any before."""

    thread_id: str
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A thread as it is stored."""

    head: Head
    checkpoints: Sequence[bytes]
    """The records from the latest whole checkpoint to the one that was asked for."""

    journal: Sequence[bytes] = ()
    """The records of the step that runs; empty for an older checkpoint."""

    answers: Sequence[bytes] = field(default=())


class Checkpointer(ABC):
    """Stores threads: their heads, checkpoints, journals and answers.

    A thread has one owner at most, who holds its lease and alone may write. Once
    another owner has claimed the thread, each write with the older lease is refused
    with LeaseLostError. Answers need no lease: the first one to a question counts.

    Each abstract method that reads or writes is one transaction: it happens as a whole
    or not at all. An instance belongs to one event loop. Every method raises
    StoreUnavailableError if the store does not answer.
    """

    durable: bool = True
    """True if threads outlive the process."""

    def __init__(self) -> None:
        self._saving = anyio.Lock()

    @abstractmethod
    async def create(self, head: Head, checkpoint: bytes) -> Lease:
        """Make a thread with its first checkpoint, owned by the caller.

        Raises:
            ThreadBusyError: There is one of this id.
        """

    @abstractmethod
    async def claim(self, thread_id: str, *, steal: bool = False) -> Lease:
        """Become the owner of a thread.

        Args:
            thread_id: The id of the thread.
            steal: Take it from an owner that lives; its next write is refused.

        Raises:
            CheckpointNotFoundError: There is no such thread.
            ThreadBusyError: Its owner lives.
        """

    @abstractmethod
    async def release(self, lease: Lease) -> None:
        """Give a lease back; one that was lost already is no error."""

    @abstractmethod
    async def append(
        self, lease: Lease, records: Sequence[bytes], head: Head | None = None
    ) -> None:
        """Add records to the journal, and replace the head unless it is None.

        Raises:
            LeaseLostError: The thread has another owner; nothing was written.
        """

    @abstractmethod
    async def commit(
        self, lease: Lease, checkpoint: bytes, head: Head, *, whole: bool
    ) -> None:
        """Add a checkpoint, named by the head, and delete the journal and the answers.

        Args:
            lease: The lease that the caller holds.
            checkpoint: The record.
            head: The new head of the thread.
            whole: True if the record holds the whole state, False if it is a patch.

        Raises:
            LeaseLostError: The thread has another owner; nothing was written.
        """

    @abstractmethod
    async def put_once(self, thread_id: str, key: str, record: bytes) -> bool:
        """Store an answer unless there is one; the caller needs no lease.

        Returns:
            False: the key is taken.

        Raises:
            CheckpointNotFoundError: There is no such thread.
        """

    @abstractmethod
    async def read(
        self, thread_id: str, checkpoint_id: str | None = None
    ) -> Stored | None:
        """Return a thread as of a checkpoint, by default the latest.

        Returns:
            None: there is no such thread.

        Raises:
            CheckpointNotFoundError: The thread has no such checkpoint.
            CheckpointSerializationError: A row was changed, lost or moved.
        """

    async def answers(self, thread_id: str) -> Sequence[bytes]:
        """Return the answers of the step that runs; of an unknown thread none.

        An owner asks for them again and again, so a store should have a quick way.
        """
        stored = await self.read(thread_id)
        return () if stored is None else stored.answers

    @abstractmethod
    async def checkpoints(
        self, thread_id: str, limit: int, before: str | None = None
    ) -> list[bytes]:
        """Return checkpoints, newest first.

        Args:
            thread_id: The id of the thread; an unknown one has none.
            limit: The largest number of them; when it is reached, ask again with
                `before`.
            before: The id that all returned checkpoints are older than; None: any.
        """

    @abstractmethod
    async def heads(
        self,
        *,
        graph: str | None = None,
        status: ThreadStatus | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> list[Head]:
        """Return threads, the last changed first.

        Args:
            graph: The name of their graph; None: any.
            status: The status of the threads; None: any.
            limit: The largest number of them; when it is reached, ask again with
                `before`.
            before: The id of a thread that changed after all returned ones; None: any.
        """

    @abstractmethod
    async def delete(self, thread_id: str) -> bool:
        """Delete a thread that nobody runs.

        Returns:
            False: there was no such thread.

        Raises:
            ThreadBusyError: Somebody runs it.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close the store; threads remain in it if it is `durable`."""

    @property
    def capabilities(self) -> CheckpointerCapabilities:
        """The optional features of `CheckpointerProtocol` that it has."""
        return CheckpointerCapabilities(persistent_checkpoint_ids=self.durable)

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
        kept = _kept(state, metadata)
        made, now = checkpoint_id or secrets.token_hex(8), datetime.now(UTC)
        head = _saved_head(thread_id, made, now)
        async with self._saving:
            known = await self._saved(thread_id)
            if known is None:
                _check_latest(after, None)
                first = Checkpoint(id=made, step=0, at=now, state=kept, next=[])
                lease = await self.create(head, first.to_bytes())
            else:
                lease = await self.claim(thread_id)
            try:
                if known is not None:
                    await self._save_next(lease, head, kept, after)
            finally:
                with anyio.CancelScope(shield=True):
                    await self.release(lease)
        return made

    async def _save_next(
        self, lease: Lease, head: Head, kept: dict[str, Any], after: str | None
    ) -> None:
        known = await self._saved(head.thread_id)
        assert known is not None
        _check_latest(after, known.head.checkpoint)
        step = read_checkpoint(known.checkpoints[-1]).step + 1
        made = Checkpoint(
            id=head.checkpoint, step=step, at=head.updated, state=kept, next=[]
        )
        await self.commit(lease, made.to_bytes(), head, whole=True)

    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> Any:
        """Return a saved state; see `CheckpointerProtocol.load`.

        Raises:
            CheckpointSerializationError: As there.
            InvalidInputError: A Flow runs this thread.
        """
        try:
            known = await self._saved(thread_id, checkpoint_id)
        except CheckpointNotFoundError:
            return None
        if known is None:
            return None
        return (read_checkpoint(known.checkpoints[-1]).state or {})["saved"]

    async def list_checkpoints(
        self, thread_id: str, limit: int = 10, *, before: str | None = None
    ) -> list[str]:
        """Return ids, newest first; see `CheckpointerProtocol.list_checkpoints`."""
        texts = await self.checkpoints(thread_id, limit, before)
        return [read_checkpoint(text).id for text in texts]

    async def _saved(
        self, thread_id: str, checkpoint_id: str | None = None
    ) -> Stored | None:
        known = await self.read(thread_id, checkpoint_id)
        if known is not None and known.head.graph != _NO_GRAPH:
            raise InvalidInputError(
                "a Flow runs this thread",
                hint="use flow.state(thread_id), or another id",
                details={"thread": thread_id},
            )
        return known

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _kept(state: Any, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    try:
        return {"saved": jsonable(state), "metadata": jsonable(dict(metadata or {}))}
    except ValueError as error:
        raise CheckpointSerializationError(
            f"the state cannot be written: {error}", hint="use values that JSON has"
        ) from None


def _check_latest(after: str | None, latest: str | None) -> None:
    if after is not None and after != latest:
        raise CheckpointError(
            "another checkpoint came in between",
            hint="load the latest one, and decide again",
            details={"latest": latest},
        )


def _saved_head(thread_id: str, checkpoint_id: str, now: datetime) -> Head:
    return Head(
        thread_id=thread_id,
        graph=_NO_GRAPH,
        version="",
        shape="",
        agent=None,
        status="done",
        checkpoint=checkpoint_id,
        created=now,
        updated=now,
    )
