"""Records of one thread, written in their order and several at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from ..stores.base import Lease
from ..stores.checkpointer import Checkpointer
from ..stores.records import JournalRecord
from .journal import TaskJournal


@dataclass(slots=True)
class _Batch:
    records: list[tuple[TaskJournal, JournalRecord, bytes | None]] = field(
        default_factory=list
    )
    _written: anyio.Event | None = None

    async def wait(self) -> None:
        """Return once they are stored."""
        if self._written is None:
            self._written = anyio.Event()
        await self._written.wait()

    def end(self) -> None:
        """Wake those that wait."""
        if self._written is not None:
            self._written.set()


class JournalWriter:
    """Writes the records of a thread's tasks, in its own task.

    Records that come while others are being written go into the next write together. A
    task that is cancelled while it waits leaves its record, which is written.

    Args:
        store: The store of the thread.
        lease: The lease of the thread.
    """

    def __init__(self, store: Checkpointer, lease: Lease) -> None:
        self.group: TaskGroup | None = None
        """The task group of the run. An error of the store ends it."""

        self._store = store
        self._lease = lease
        self._busy = False
        self._next = _Batch()
        self._running: _Batch | None = None

    async def write(
        self,
        journal: TaskJournal,
        records: Sequence[JournalRecord],
        *,
        lasting: bool = False,
    ) -> None:
        """Return once the records are stored, and in the journal of their task.

        Args:
            journal: The journal of their task.
            records: The records.
            lasting: True: the caller is not cancelled before the run is, and writes
                them itself if nobody else is writing.

        Raises:
            CheckpointSerializationError: One of them has no JSON form.
        """
        texts = [record.to_bytes() for record in records]
        batch = self._next
        batch.records += [(journal, *each) for each in zip(records, texts, strict=True)]
        if lasting and not self._busy:
            self._busy = True
            await self._write_next()
            self._go_on()
            return
        self._begin()
        await batch.wait()

    def write_later(self, journal: TaskJournal, record: JournalRecord) -> None:
        """Have a record written that nobody waits for."""
        self._next.records.append((journal, record, None))
        self._begin()

    async def flush(self) -> None:
        """Return once all records are stored."""
        if self._next.records:
            await self._next.wait()
        elif self._running is not None:
            await self._running.wait()

    async def drop(self) -> None:
        """Forget records that are not yet being written; wait for those that are."""
        self._next.records.clear()
        if self._running is not None:
            await self._running.wait()

    def _begin(self) -> None:
        if not self._busy:
            self._go_on()

    def _go_on(self) -> None:
        self._busy = bool(self._next.records)
        if self._busy:
            assert self.group is not None
            self.group.start_soon(self._write_all)

    async def _write_all(self) -> None:
        while self._next.records:
            await self._write_next()
        self._busy = False

    async def _write_next(self) -> None:
        batch, self._running, self._next = self._next, self._next, _Batch()
        texts = [text or record.to_bytes() for _, record, text in batch.records]
        await self._store.append(self._lease, texts)
        for journal, record, _ in batch.records:
            journal.add(record)
        self._running = None
        batch.end()
