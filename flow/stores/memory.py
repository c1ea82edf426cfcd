"""Threads in the memory of one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from anyio.lowlevel import checkpoint as other_tasks

from . import errors
from .base import Lease, Stored
from .checkpointer import Checkpointer
from .records import ThreadHead, ThreadStatus


@dataclass(slots=True)
class _Thread:
    head: ThreadHead
    token: int = 1
    owned: bool = True
    checkpoints: list[bytes] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    """The places of the checkpoints by their ids."""

    whole: list[int] = field(default_factory=list)
    """The places of checkpoints that hold the whole state."""

    journal: list[bytes] = field(default_factory=list)
    answers: dict[str, bytes] = field(default_factory=dict)

    def add(self, checkpoint_id: str, record: bytes, *, whole: bool) -> None:
        number = len(self.checkpoints)
        self.numbers[checkpoint_id] = number
        if whole:
            self.whole.append(number)
        self.checkpoints.append(record)


class MemoryCheckpointer(Checkpointer):
    """Threads in memory: for tests, and for runs that may be lost with the process."""

    durable = False

    def __init__(self) -> None:
        super().__init__()
        self._threads: dict[str, _Thread] = {}
        """Those that changed last come last."""

    async def create(self, head: ThreadHead, checkpoint: bytes) -> Lease:
        await other_tasks()
        if head.thread_id in self._threads:
            raise errors.thread_busy(head.thread_id)
        thread = self._threads[head.thread_id] = _Thread(head)
        thread.add(head.checkpoint, checkpoint, whole=True)
        return Lease(head.thread_id, thread.token)

    async def claim(self, thread_id: str, *, steal: bool = False) -> Lease:
        await other_tasks()
        thread = self._find_thread(thread_id)
        if thread.owned and not steal:
            raise errors.thread_busy(thread_id)
        thread.token += 1
        thread.owned = True
        return Lease(thread_id, thread.token)

    async def release(self, lease: Lease) -> None:
        await other_tasks()
        thread = self._threads.get(lease.thread_id)
        if thread is not None and thread.token == lease.token:
            thread.owned = False

    async def append(
        self, lease: Lease, records: Sequence[bytes], head: ThreadHead | None = None
    ) -> None:
        await other_tasks()
        thread = self._owned(lease)
        thread.journal += [bytes(record) for record in records]
        if head is not None:
            self._set_head(thread, head)

    async def commit(
        self, lease: Lease, checkpoint: bytes, head: ThreadHead, *, whole: bool
    ) -> None:
        await other_tasks()
        thread = self._owned(lease)
        if head.checkpoint in thread.numbers:
            raise errors.checkpoint_exists(lease.thread_id)
        thread.add(head.checkpoint, checkpoint, whole=whole)
        thread.journal.clear()
        thread.answers.clear()
        self._set_head(thread, head)

    def _set_head(self, thread: _Thread, head: ThreadHead) -> None:
        thread.head = head
        self._threads[head.thread_id] = self._threads.pop(head.thread_id)

    async def put_once(
        self, thread_id: str, key: str, record: bytes, *, at: str | None = None
    ) -> bool:
        await other_tasks()
        thread = self._find_thread(thread_id)
        if key in thread.answers or at not in (None, thread.head.checkpoint):
            return False
        thread.answers[key] = record
        return True

    async def read(
        self, thread_id: str, checkpoint_id: str | None = None
    ) -> Stored | None:
        await other_tasks()
        thread = self._threads.get(thread_id)
        if thread is None:
            return None
        latest = thread.head.checkpoint
        wanted = checkpoint_id or latest
        if wanted not in thread.numbers:
            raise errors.no_checkpoint(thread_id, wanted)
        last = thread.numbers[wanted]
        first = max(number for number in thread.whole if number <= last)
        checkpoints = thread.checkpoints[first : last + 1]
        if wanted != latest:
            return Stored(head=thread.head, checkpoints=checkpoints)
        return Stored(
            head=thread.head,
            checkpoints=checkpoints,
            journal=list(thread.journal),
            answers=list(thread.answers.values()),
        )

    async def answers(self, thread_id: str) -> Sequence[bytes]:
        await other_tasks()
        thread = self._threads.get(thread_id)
        return [] if thread is None else list(thread.answers.values())

    async def checkpoints(
        self, thread_id: str, limit: int, before: str | None = None
    ) -> list[bytes]:
        await other_tasks()
        thread = self._threads.get(thread_id)
        if thread is None:
            return []
        count = len(thread.checkpoints)
        end = count if before is None else thread.numbers.get(before, 0)
        return thread.checkpoints[max(0, end - limit) : end][::-1]

    async def heads(
        self,
        *,
        graph: str | None = None,
        status: ThreadStatus | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> list[ThreadHead]:
        await other_tasks()
        found: list[ThreadHead] = []
        for head in self._older(before):
            if len(found) == limit:
                break
            if graph in (None, head.graph) and status in (None, head.status):
                found.append(head)
        return found

    async def answered(self, graph: str) -> list[str]:
        await other_tasks()
        return [
            name
            for name, thread in self._threads.items()
            if thread.answers
            and (thread.head.graph, thread.head.status) == (graph, "interrupted")
        ]

    def _older(self, before: str | None) -> Iterator[ThreadHead]:
        newest_first = (thread.head for thread in reversed(self._threads.values()))
        if before is not None:
            for head in newest_first:
                if head.thread_id == before:
                    break
        return newest_first

    async def delete(self, thread_id: str) -> bool:
        await other_tasks()
        thread = self._threads.get(thread_id)
        if thread is None:
            return False
        if thread.owned:
            raise errors.thread_busy(thread_id)
        del self._threads[thread_id]
        return True

    async def aclose(self) -> None:
        """Keep the threads: they end with this object."""

    def _find_thread(self, thread_id: str) -> _Thread:
        thread = self._threads.get(thread_id)
        if thread is None:
            raise errors.no_thread(thread_id)
        return thread

    def _owned(self, lease: Lease) -> _Thread:
        thread = self._threads.get(lease.thread_id)
        if thread is None or not thread.owned or thread.token != lease.token:
            raise errors.lease_lost(lease.thread_id)
        return thread
