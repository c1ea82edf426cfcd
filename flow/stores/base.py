"""What keeps threads: one writer each, all or nothing, and anybody may answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from .records import Head, ThreadStatus


class Lease(NamedTuple):
    """The right to write a thread; its token is higher than that of any before."""

    thread_id: str
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A thread as it is kept."""

    head: Head
    checkpoints: Sequence[bytes]
    """From the latest whole one to the one asked for."""

    journal: Sequence[bytes] = ()
    """Of the step that runs; empty if an older checkpoint was asked for."""

    answers: Sequence[bytes] = field(default=())


class Checkpointer(ABC):
    """Keeps threads.

    A thread's owner holds its lease and writes; a lease that was taken over writes
    nothing. An instance belongs to one event loop. Every method raises
    StoreUnavailableError where the store does not answer.
    """

    durable: bool = True
    """Whether threads outlive the process."""

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
            thread_id: Which.
            steal: Take it from an owner that lives; its next write is refused.

        Raises:
            CheckpointNotFoundError: There is no such thread.
            ThreadBusyError: Its owner lives.
        """

    @abstractmethod
    async def release(self, lease: Lease) -> None:
        """Let go of a thread; a lease that was lost already is no error."""

    @abstractmethod
    async def append(
        self, lease: Lease, records: Sequence[bytes], head: Head | None = None
    ) -> None:
        """Add records to the journal and put the head in the place of the old one.

        Raises:
            LeaseLostError: The thread has another owner; nothing was written.
        """

    @abstractmethod
    async def commit(
        self, lease: Lease, checkpoint: bytes, head: Head, *, whole: bool
    ) -> None:
        """Add a checkpoint, named by the head; the journal and its answers go.

        Args:
            lease: The caller's.
            checkpoint: The record.
            head: The thread from now on.
            whole: Whether it holds all of the state.

        Raises:
            LeaseLostError: The thread has another owner; nothing was written.
        """

    @abstractmethod
    async def put_once(self, thread_id: str, key: str, record: bytes) -> bool:
        """Keep an answer unless there is one; whoever asks needs no lease.

        Returns:
            False: the key is taken.

        Raises:
            CheckpointNotFoundError: There is no such thread.
        """

    @abstractmethod
    async def read(
        self, thread_id: str, checkpoint_id: str | None = None
    ) -> Stored | None:
        """Return a thread as of a checkpoint, by default the latest; None: not there.

        Raises:
            CheckpointSerializationError: A row was changed, lost or moved.
        """

    @abstractmethod
    async def checkpoints(
        self, thread_id: str, limit: int, before: str | None = None
    ) -> list[bytes]:
        """Return checkpoints, newest first.

        Args:
            thread_id: Which thread; none of an unknown one.
            limit: How many at most; when it is reached, ask again with `before`.
            before: Only those older than this id.
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
            graph: Only threads of it.
            status: Only threads that stand so.
            limit: How many at most; when it is reached, ask again with `before`.
            before: Only those changed before this thread was.
        """

    @abstractmethod
    async def delete(self, thread_id: str) -> bool:
        """Remove all of a thread that nobody runs; False: it was not there.

        Raises:
            ThreadBusyError: Somebody runs it.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of the store; threads stay in it as it promises."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
