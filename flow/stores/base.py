"""The contract of stores of threads: one writer each, and whole writes only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from .records import ThreadHead, ThreadStatus


class Lease(NamedTuple):
    """The right to write a thread; its token is higher than that of any before."""

    thread_id: str
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A thread as it is stored."""

    head: ThreadHead
    checkpoints: Sequence[bytes]
    """The records from the latest whole checkpoint to the one that was asked for."""

    journal: Sequence[bytes] = ()
    """The records of the step that runs; empty for an older checkpoint."""

    answers: Sequence[bytes] = field(default=())


class ThreadStore(ABC):
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

    @abstractmethod
    async def create(self, head: ThreadHead, checkpoint: bytes) -> Lease:
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
        self, lease: Lease, records: Sequence[bytes], head: ThreadHead | None = None
    ) -> None:
        """Add records to the journal, and replace the head unless it is None.

        Raises:
            LeaseLostError: The thread has another owner; nothing was written.
        """

    @abstractmethod
    async def commit(
        self, lease: Lease, checkpoint: bytes, head: ThreadHead, *, whole: bool
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
    async def put_once(
        self, thread_id: str, key: str, record: bytes, *, at: str | None = None
    ) -> bool:
        """Store an answer unless there is one; the caller needs no lease.

        Args:
            thread_id: The id of the thread.
            key: The id of the question.
            record: The answer.
            at: The checkpoint at which the question is open; None: any.

        Returns:
            False: the key is taken, or the latest checkpoint is another one.

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
    ) -> list[ThreadHead]:
        """Return threads, the last changed first.

        Args:
            graph: The name of their graph; None: any.
            status: The status of the threads; None: any.
            limit: The largest number of them; when it is reached, ask again with
                `before`.
            before: The id of a thread that changed after all returned ones; None: any.

        A thread whose head cannot be read is passed over, and named once in the log.
        """

    @abstractmethod
    async def answered(self, graph: str) -> list[str]:
        """Return the ids of the paused threads of a graph that have an answer.

        Its cost may grow with the number of answers, not with that of threads.
        """

    async def unreadable(self) -> list[str]:
        """Return the ids of threads whose head cannot be read."""
        return []

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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
