"""Threads in a checkpointer of somebody else."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
from pydantic import Field

from toolcell.core import (
    CheckpointerProtocol,
    CheckpointError,
    CheckpointSerializationError,
    ConfigError,
)
from toolcell.core.models import FrozenModel

from . import errors
from .base import Lease, Stored
from .checkpointer import Checkpointer
from .reading import HeadReader, read_head
from .records import ThreadHead, ThreadStatus, chained

_T = TypeVar("_T")
_INDEX = "flow.index"
_PAGE = 10


class _Kept(FrozenModel):
    refusal = CheckpointSerializationError
    refusal_hint = "restore the store from a copy, or delete the thread"


class _Place(_Kept):
    """The place of one checkpoint."""

    id: str
    at: str
    """The id under which the other checkpointer has it."""

    whole: bool


class _Document(_Kept):
    """A thread as the other checkpointer has it; None as its head: it was deleted."""

    head: str | None = None
    token: int = 0
    owner: str | None = None
    until: float = 0.0
    """The end of the lease, in seconds since 1970 (UTC)."""

    changed: int = 0
    places: list[_Place] = Field(default_factory=list)
    journal: list[str] = Field(default_factory=list)
    answers: dict[str, str] = Field(default_factory=dict)
    sum: str = ""


class _Index(_Kept):
    """The ids of the threads that there may be."""

    threads: list[str] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Read:
    """A document, and the id after which the next one is saved."""

    value: Any
    latest: str | None


def adapt(
    checkpointer: CheckpointerProtocol, *, lease_seconds: float = 60.0
) -> Checkpointer:
    """Return a store of threads in a `CheckpointerProtocol`.

    A thread is one document that is saved anew with each write, `after` the one before,
    so it is slower than a store of ours. Two writers are kept apart by `after` alone.
    What was deleted is no longer found, but remains in the other checkpointer.

    Args:
        checkpointer: It has its own threads beside `flow.*`; its owner closes it.
        lease_seconds: Seconds after its last write when the thread of an owner may be
            claimed by another; default 60. An owner that then writes is refused.

    Raises:
        ConfigError: `lease_seconds` is not above 0.
    """
    if not lease_seconds > 0:
        raise ConfigError("lease_seconds is above 0", hint="such as 60")
    return _Adapter(checkpointer, lease_seconds)


class _Adapter(Checkpointer):
    def __init__(self, other: CheckpointerProtocol, lease_seconds: float) -> None:
        super().__init__()
        self._other = other
        self._seconds = lease_seconds
        self._owner = secrets.token_hex(8)
        self._reader = HeadReader()
        self.durable = other.capabilities.persistent_checkpoint_ids

    async def create(self, head: ThreadHead, checkpoint: bytes) -> Lease:
        thread = head.thread_id
        place = await self._place(thread, head.checkpoint, checkpoint, whole=True)
        await self._in_index(thread)

        def change(old: _Document) -> tuple[_Document, Lease]:
            if old.head is not None:
                raise errors.thread_busy(thread)
            newer = self._with_head(
                _Document(token=old.token + 1, places=[place]), head
            )
            return self._leased(newer), Lease(thread, newer.token)

        return await self._change(thread, change)

    async def claim(self, thread_id: str, *, steal: bool = False) -> Lease:
        def change(old: _Document) -> tuple[_Document, Lease]:
            if not steal and _is_held(_there(thread_id, old)):
                raise errors.thread_busy(thread_id)
            newer = self._leased(_there(thread_id, old), token=old.token + 1)
            return newer, Lease(thread_id, newer.token)

        return await self._change(thread_id, change)

    def _leased(self, document: _Document, **more: Any) -> _Document:
        until = time.time() + self._seconds
        return _with(document, owner=self._owner, until=until, **more)

    def _with_head(self, document: _Document, head: ThreadHead) -> _Document:
        text = head.to_bytes().decode()
        return _with(document, head=text, changed=time.time_ns())

    async def release(self, lease: Lease) -> None:
        def change(old: _Document) -> tuple[_Document, None]:
            mine = (old.owner, old.token) == (self._owner, lease.token)
            return (_with(old, owner=None) if mine else old), None

        await self._change(lease.thread_id, change)

    async def append(
        self, lease: Lease, records: Sequence[bytes], head: ThreadHead | None = None
    ) -> None:
        texts = [record.decode() for record in records]

        def change(old: _Document) -> tuple[_Document, None]:
            newer = self._leased(
                self._owned(old, lease), journal=[*old.journal, *texts]
            )
            return (newer if head is None else self._with_head(newer, head)), None

        await self._change(lease.thread_id, change)

    async def commit(
        self, lease: Lease, checkpoint: bytes, head: ThreadHead, *, whole: bool
    ) -> None:
        thread = lease.thread_id
        place = await self._place(thread, head.checkpoint, checkpoint, whole=whole)

        def change(old: _Document) -> tuple[_Document, None]:
            known = self._owned(old, lease).places
            if place.id in {each.id for each in known}:
                raise errors.checkpoint_exists(thread)
            newer = _with(old, places=[*known, place], journal=[], answers={})
            return self._with_head(self._leased(newer), head), None

        await self._change(thread, change)

    def _owned(self, document: _Document, lease: Lease) -> _Document:
        mine = (document.owner, document.token) == (self._owner, lease.token)
        if document.head is None or not mine:
            raise errors.lease_lost(lease.thread_id)
        return document

    async def put_once(
        self, thread_id: str, key: str, record: bytes, *, at: str | None = None
    ) -> bool:
        def change(old: _Document) -> tuple[_Document, bool]:
            known = _there(thread_id, old)
            if key in known.answers or at not in (None, known.places[-1].id):
                return old, False
            newer = {**old.answers, key: record.decode()}
            return _with(old, answers=newer), True

        return await self._change(thread_id, change)

    async def read(
        self, thread_id: str, checkpoint_id: str | None = None
    ) -> Stored | None:
        document, _ = await self._document(thread_id)
        if document.head is None:
            return None
        head = read_head(document.head.encode())
        wanted = checkpoint_id or head.checkpoint
        ids = [place.id for place in document.places]
        if wanted not in ids:
            raise errors.no_checkpoint(thread_id, wanted)
        last = ids.index(wanted) + 1
        wholes = [n for n, place in enumerate(document.places[:last]) if place.whole]
        places = document.places[wholes[-1] if wholes else 0 : last]
        checkpoints = [await self._record(thread_id, place) for place in places]
        if wanted != head.checkpoint:
            return Stored(head=head, checkpoints=checkpoints)
        return Stored(
            head=head,
            checkpoints=checkpoints,
            journal=[text.encode() for text in document.journal],
            answers=[text.encode() for text in document.answers.values()],
        )

    async def checkpoints(
        self, thread_id: str, limit: int, before: str | None = None
    ) -> list[bytes]:
        places = (await self._document(thread_id))[0].places
        if before is not None:
            ids = [place.id for place in places]
            places = places[: ids.index(before)] if before in ids else []
        newest = places[::-1][:limit]
        return [await self._record(thread_id, place) for place in newest]

    async def heads(
        self,
        *,
        graph: str | None = None,
        status: ThreadStatus | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> list[ThreadHead]:
        found, _ = await self._every_document()
        end = None
        if before is not None:
            end = next((d.changed for d, h in found if h.thread_id == before), 0)
        wanted = [
            head
            for document, head in sorted(found, key=lambda pair: -pair[0].changed)
            if end is None or document.changed < end
            if graph in (None, head.graph) and status in (None, head.status)
        ]
        return wanted[:limit]

    async def answered(self, graph: str) -> list[str]:
        found, _ = await self._every_document()
        return [
            head.thread_id
            for document, head in found
            if document.answers and (head.graph, head.status) == (graph, "interrupted")
        ]

    async def unreadable(self) -> list[str]:
        _, unreadable = await self._every_document()
        return unreadable

    async def _every_document(
        self,
    ) -> tuple[list[tuple[_Document, ThreadHead]], list[str]]:
        """Return the threads with their heads, and the ids of unreadable ones."""
        found, unreadable = [], []
        for thread in (await self._index()).value.threads:
            try:
                document, _ = await self._document(thread)
                text = document.head
            except CheckpointSerializationError:
                text = ""
            if text is not None:
                head = self._reader.read(thread, text.encode())
                if head is None:
                    unreadable.append(thread)
                else:
                    found.append((document, head))
        return found, unreadable

    async def delete(self, thread_id: str) -> bool:
        def change(old: _Document) -> tuple[_Document, bool]:
            if old.head is None:
                return old, False
            if _is_held(old):
                raise errors.thread_busy(thread_id)
            return _Document(token=old.token), True

        return await self._change(thread_id, change)

    async def aclose(self) -> None:
        """Do nothing: the other checkpointer is its owner's."""

    async def _place(
        self, thread: str, checkpoint: str, record: bytes, *, whole: bool
    ) -> _Place:
        text = record.decode()
        entry = {"record": text, "sum": _sum(f"{thread}/{checkpoint}", text)}
        # Until the thread's document names it nobody sees it.
        at = await self._other.save(entry, f"flow.checkpoints.{thread}")
        return _Place(id=checkpoint, at=at, whole=whole)

    async def _record(self, thread: str, place: _Place) -> bytes:
        entry = await self._other.load(f"flow.checkpoints.{thread}", place.at)
        try:
            text, checksum = str(entry["record"]), entry["sum"]
        except (KeyError, TypeError):
            raise errors.row_changed(thread, "a checkpoint") from None
        if _sum(f"{thread}/{place.id}", text) != checksum:
            raise errors.row_changed(thread, "a checkpoint")
        return text.encode()

    async def _document(self, thread: str) -> tuple[_Document, str | None]:
        found = await self._newest(f"flow.thread.{thread}")
        if found.value is None:
            return _Document(), found.latest
        document = _Document.model_validate(found.value)
        if _sum(thread, _text(document)) != document.sum:
            raise errors.row_changed(thread, "the document")
        return document, found.latest

    async def _change(
        self, thread: str, change: Callable[[_Document], tuple[_Document, _T]]
    ) -> _T:
        """Change a thread's document, however many others change it as well."""
        while True:
            old, latest = await self._document(thread)
            newer, outcome = change(old)
            if newer is old:
                return outcome
            signed = newer.model_copy(update={"sum": _sum(thread, _text(newer))})
            if await self._save(f"flow.thread.{thread}", signed, latest):
                return outcome

    async def _index(self) -> _Read:
        found = await self._newest(_INDEX)
        return _Read(_Index.model_validate(found.value or {}), found.latest)

    async def _in_index(self, thread: str) -> None:
        while True:
            known = await self._index()
            if thread in known.value.threads:
                return
            newer = _Index(threads=[*known.value.threads, thread])
            if await self._save(_INDEX, newer, known.latest):
                return

    async def _newest(self, name: str) -> _Read:
        """Return the newest document of a name; one that is None does not count."""
        latest: str | None = None
        before: str | None = None
        while ids := await self._other.list_checkpoints(name, _PAGE, before=before):
            latest = latest or ids[0]
            for checkpoint_id in ids:
                value = await self._other.load(name, checkpoint_id)
                if value != {}:
                    return _Read(value, latest)
            before = ids[-1]
        return _Read(None, latest)

    async def _save(self, name: str, value: FrozenModel, latest: str | None) -> bool:
        """Save a document after another; False: another one came in between.

        `after` cannot say "if there is none". So the first document of a name is empty,
        and does not count: if several writers save one, `after` decides among them.
        """
        # A write that has begun ends, even if its caller is cancelled.
        with anyio.CancelScope(shield=True):
            if latest is None:
                await self._other.save({}, name)
                return False
            try:
                await self._other.save(
                    value.model_dump(mode="json"), name, after=latest
                )
            except CheckpointSerializationError:
                raise
            except CheckpointError:
                return False
        return True


def _there(thread: str, document: _Document) -> _Document:
    if document.head is None:
        raise errors.no_thread(thread)
    return document


def _is_held(document: _Document) -> bool:
    return document.owner is not None and document.until > time.time()


def _with(document: _Document, **values: Any) -> _Document:
    return document.model_copy(update=values)


def _text(document: _Document) -> str:
    return document.model_dump_json(exclude={"sum"})


def _sum(name: str, text: str) -> str:
    return chained(name.encode(), text.encode()).hex()
