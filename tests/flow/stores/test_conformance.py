"""The suite that checkpointers of others are held to: ours pass, broken ones do not."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import CheckpointerCapabilities
from toolcell.flow import MemoryCheckpointer, SQLiteCheckpointer
from toolcell.flow.conformance.threads import check_an_owner_that_is_gone_is_replaced
from toolcell.flow.spi import FLOW_CHECKPOINTER_CHECKS, check_flow_checkpointer
from toolcell.flow.stores.base import Lease, Stored
from toolcell.flow.stores.checkpointer import history, write_copy
from toolcell.flow.stores.records import ThreadHead
from toolcell.flow.stores.saved_states import check_ended
from toolcell.flow.stores.tables import Tables

from ...support.flow.store_table import STORES, OpenOne, stores

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("check", FLOW_CHECKPOINTER_CHECKS)
async def test_each_of_our_stores_keeps_each_promise(
    check: Callable[[OpenOne], Awaitable[None]], name: str
) -> None:
    waits = check is check_an_owner_that_is_gone_is_replaced
    with stores(name, 1 if waits else 60) as opened:
        await check(opened)


@pytest.mark.parametrize("name", ["memory", "quick", "adapted"])
async def test_the_checks_run_one_after_the_other_on_one_storage(name: str) -> None:
    with stores(name, lease_seconds=5) as opened:
        await check_flow_checkpointer(opened)


class LosesRecords(Tables):
    def append(self, db: Any, lease: Any, records: Any, head: Any) -> None:
        super().append(db, lease, records[1:], head)


class KeepsTheAnswers(Tables):
    def commit(self, db: sqlite3.Connection, *args: Any) -> None:
        kept = db.execute("SELECT * FROM flow_answers").fetchall()
        super().commit(db, *args)
        db.executemany("INSERT OR IGNORE INTO flow_answers VALUES (?, ?, ?, ?)", kept)


class WritesInParts(Tables):
    def append(self, db: Any, lease: Any, records: Any, head: Any) -> None:
        for record in records:
            super().append(db, lease, [record], head)
            db.execute("COMMIT")
            db.execute("BEGIN")


class HasTwoOwners(Tables):
    def claim(self, db: sqlite3.Connection, thread: str, steal: bool) -> Lease:
        return super().claim(db, thread, True)


class BelievesAnyLease(Tables):
    def _last(self, db: sqlite3.Connection, lease: Lease) -> Any:
        return super()._last(db, Lease(lease.thread_id, self._held[lease.thread_id]))


class FreesForAnybody(Tables):
    def release(self, db: sqlite3.Connection, lease: Lease) -> None:
        thread = lease.thread_id
        db.execute("UPDATE flow_threads SET owner = NULL WHERE thread = ?", [thread])


class KeepsTheLastAnswer(Tables):
    def put_once(self, db: Any, thread: str, *rest: Any) -> bool:
        db.execute("DELETE FROM flow_answers WHERE thread = ?", [thread])
        return super().put_once(db, thread, *rest)


class TakesAnswersTooLate(Tables):
    def put_once(self, db: Any, thread: str, key: str, record: bytes, at: Any) -> bool:
        return super().put_once(db, thread, key, record, None)


class ReadsFromTheStart(Tables):
    def commit(
        self, db: Any, lease: Lease, checkpoint: bytes, head: ThreadHead, whole: bool
    ) -> None:
        super().commit(db, lease, checkpoint, head, False)


class PagesFromTheEnd(Tables):
    def checkpoints(
        self, db: Any, thread: str, limit: int, before: str | None
    ) -> list[bytes]:
        return super().checkpoints(db, thread, limit, None)


class ForgetsTheStatus(Tables):
    def heads(self, db: Any, graph: Any, status: Any, *rest: Any) -> list[ThreadHead]:
        return super().heads(db, graph, None, *rest)


class DeletesByPattern(Tables):
    def delete(self, db: sqlite3.Connection, thread: str) -> bool:
        found = super().delete(db, thread)
        db.execute("DELETE FROM flow_threads WHERE thread LIKE ?", [thread])
        return found


class CutsAtZero(Tables):
    def read(self, *args: Any) -> Stored | None:
        found = super().read(*args)
        if found is None:
            return None
        journal = [record.split(b"\x00")[0] for record in found.journal]
        return Stored(
            head=found.head,
            checkpoints=found.checkpoints,
            journal=journal,
            answers=found.answers,
        )


class MakesThreads(Tables):
    def put_once(self, *_: Any) -> bool:
        return True


BROKEN = [
    LosesRecords,
    KeepsTheAnswers,
    WritesInParts,
    HasTwoOwners,
    BelievesAnyLease,
    FreesForAnybody,
    KeepsTheLastAnswer,
    TakesAnswersTooLate,
    ReadsFromTheStart,
    PagesFromTheEnd,
    ForgetsTheStatus,
    DeletesByPattern,
    CutsAtZero,
    MakesThreads,
]


@pytest.mark.parametrize("tables", BROKEN)
async def test_a_broken_store_is_found(tables: type[Tables], tmp_path: Path) -> None:
    class Broken(SQLiteCheckpointer):
        def __init__(self) -> None:
            super().__init__(tmp_path / "t.db", power_safe=False)
            self._tables = tables(self._owner.name, self._lives)

        async def aclose(self) -> None:
            """Stay open: it dies with its instance."""

    store = Broken()
    with pytest.raises(AssertionError):
        await check_flow_checkpointer(lambda: store)


class SaysAllExists(MemoryCheckpointer):
    async def exists(self, thread_id: str, checkpoint_id: str | None = None) -> bool:
        return await super().exists(thread_id)


class ListsAnyPattern(MemoryCheckpointer):
    async def list_threads(
        self, limit: int = 100, pattern: str = "*", *, before: str | None = None
    ) -> list[str]:
        return await super().list_threads(limit, f"{pattern}*", before=before)


class CutsPagesBeforeMatching(MemoryCheckpointer):
    async def list_threads(
        self, limit: int = 100, pattern: str = "*", *, before: str | None = None
    ) -> list[str]:
        ids = await super().list_threads(limit, before=before)
        return [each for each in ids if fnmatchcase(each, pattern)]


class CopiesTheLatest(MemoryCheckpointer):
    async def copy_thread(self, source: str, target: str) -> None:
        lease = await self.claim(source)
        stored = await self.read(source)
        assert stored is not None
        try:
            check_ended(stored.head)
            latest = await self.checkpoints(source, 1)
            await write_copy(self, stored.head, latest, target)
        finally:
            await self.release(lease)


class CopiesUnfinished(MemoryCheckpointer):
    async def copy_thread(self, source: str, target: str) -> None:
        lease = await self.claim(source)
        stored = await self.read(source)
        assert stored is not None
        texts = await history(self, source)
        await write_copy(self, stored.head, texts, target)
        await self.release(lease)


class CopiesOwned(MemoryCheckpointer):
    async def copy_thread(self, source: str, target: str) -> None:
        await self.release(await self.claim(source, steal=True))
        await super().copy_thread(source, target)


class RemovesAnyAge(MemoryCheckpointer):
    async def vacuum(self, older_than_days: float = 30.0) -> int:
        return await super().vacuum(0)


class RemovesFailed(MemoryCheckpointer):
    async def vacuum(self, older_than_days: float = 30.0) -> int:
        for head in await self.heads(status="failed"):
            await self.delete(head.thread_id)
        return await super().vacuum(older_than_days)


class HidesItsWords(MemoryCheckpointer):
    @property
    def capabilities(self) -> CheckpointerCapabilities:
        return CheckpointerCapabilities()


BROKEN_WORDS = [
    SaysAllExists,
    ListsAnyPattern,
    CutsPagesBeforeMatching,
    CopiesTheLatest,
    CopiesUnfinished,
    CopiesOwned,
    RemovesAnyAge,
    RemovesFailed,
    HidesItsWords,
]


@pytest.mark.promise("RL-20")
@pytest.mark.parametrize("kind", BROKEN_WORDS)
async def test_a_broken_word_is_found(kind: type[MemoryCheckpointer]) -> None:
    class Broken(kind):  # type: ignore[misc, valid-type]
        async def aclose(self) -> None:
            """Stay open: it dies with its instance."""

    store = Broken()
    with pytest.raises(AssertionError):
        for check in FLOW_CHECKPOINTER_CHECKS[-4:]:
            await check(lambda: store)


@pytest.mark.promise("RL-20")
@pytest.mark.parametrize("name", ["memory", "quick"])
async def test_a_copy_that_fails_is_no_thread_that_goes_on(name: str) -> None:
    class Full(Exception):
        pass

    with stores(name) as opened:
        async with opened() as store:
            for number in range(3):
                await store.save({"n": number}, "source", str(number))

            async def fails(*_: Any, **__: Any) -> None:
                raise Full

            store.commit = fails  # type: ignore[method-assign]
            with pytest.raises(Full):
                await store.copy_thread("source", "copy")
            del store.commit
            [half] = await store.heads(status="cancelled")
            assert half.thread_id == "copy"
            assert await store.delete("copy")
            await store.copy_thread("source", "copy")
            assert await store.load("copy") == {"n": 2}
