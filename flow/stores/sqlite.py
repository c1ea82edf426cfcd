"""Threads in an SQLite file that processes share."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

import anyio.lowlevel
from anyio.to_thread import run_sync

from toolcell.core import StoreUnavailableError
from toolcell.core.storage.processes import OwnerFile, in_each_child
from toolcell.core.storage.sqlite import SharedDatabase, open_sqlite

from .base import Lease, Stored
from .checkpointer import Checkpointer
from .records import ThreadHead, ThreadStatus
from .tables import SCHEMA, Tables, answered_threads, answers_of

_log = logging.getLogger(__name__)
T = TypeVar("T")
_BETWEEN_TRIES = 0.5


class SQLiteCheckpointer(Checkpointer):
    """Threads in a file on a local disk, shared by the processes that open it.

    The kernel knows which owners live: a thread whose process died can be claimed at
    once. States and results are stored as they are, secrets included, so only the
    user who owns the file can read it (mode 0600). A forked process opens one of its
    own: it is refused that of its parent.

    Args:
        path: The file; it is made if it is missing, its folder is not.
        power_safe: True, the default: writes survive a loss of power, and each of them
            waits for the disk in a worker thread. False: they survive the end of the
            process, however it ends, but perhaps not a loss of power.
        busy_seconds: Seconds to wait while another process writes; default 1.0. When
            it is reached StoreUnavailableError is raised.

    Raises:
        StoreUnavailableError: The file cannot be opened.
    """

    def __init__(
        self, path: str | Path, *, power_safe: bool = True, busy_seconds: float = 1.0
    ) -> None:
        try:
            self._file = open_sqlite(
                path,
                lambda database: database.executescript(SCHEMA),
                synchronous="FULL" if power_safe else "NORMAL",
                busy_seconds=busy_seconds,
            )
            self._owner = OwnerFile(Path(path))
        except (OSError, sqlite3.Error) as error:
            _log.error("%s: %s", path, error)
            raise StoreUnavailableError(
                "the file of threads cannot be opened",
                hint="the log of toolcell.flow says which, and why",
            ) from error
        for owner in self._owner.dead_owners():
            # A thread whose owner has no file is free as well.
            self._owner.remove(owner)
        self._in_thread = power_safe
        self._tables = Tables(self._owner.name, self._lives)
        self._turn = threading.Lock()
        self._closed = threading.Event()
        super().__init__()
        _open.add(self)

    async def create(self, head: ThreadHead, checkpoint: bytes) -> Lease:
        return await self._do(self._tables.create, head, checkpoint)

    async def claim(self, thread_id: str, *, steal: bool = False) -> Lease:
        return await self._do(self._tables.claim, thread_id, steal)

    async def release(self, lease: Lease) -> None:
        self._tables.let_go(lease)
        try:
            await self._do(self._tables.release, lease)
        except StoreUnavailableError:
            # For other processes it is free once the file can be written again.
            free = partial(self._transact, self._tables.release, lease)
            again = partial(_repeat, free, self._closed)
            threading.Thread(target=again, daemon=True).start()
            raise

    async def append(
        self, lease: Lease, records: Sequence[bytes], head: ThreadHead | None = None
    ) -> None:
        await self._do(self._tables.append, lease, records, head)

    async def commit(
        self, lease: Lease, checkpoint: bytes, head: ThreadHead, *, whole: bool
    ) -> None:
        await self._do(self._tables.commit, lease, checkpoint, head, whole)

    async def put_once(
        self, thread_id: str, key: str, record: bytes, *, at: str | None = None
    ) -> bool:
        return await self._do(self._tables.put_once, thread_id, key, record, at)

    async def read(
        self, thread_id: str, checkpoint_id: str | None = None
    ) -> Stored | None:
        return await self._do(self._tables.read, thread_id, checkpoint_id)

    async def answers(self, thread_id: str) -> Sequence[bytes]:
        return await self._do(answers_of, thread_id)

    async def checkpoints(
        self, thread_id: str, limit: int, before: str | None = None
    ) -> list[bytes]:
        return await self._do(self._tables.checkpoints, thread_id, limit, before)

    async def heads(
        self,
        *,
        graph: str | None = None,
        status: ThreadStatus | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> list[ThreadHead]:
        return await self._do(self._tables.heads, graph, status, limit, before)

    async def answered(self, graph: str) -> list[str]:
        return await self._do(answered_threads, graph)

    async def unreadable(self) -> list[str]:
        return await self._do(self._tables.unreadable)

    async def delete(self, thread_id: str) -> bool:
        return await self._do(self._tables.delete, thread_id)

    async def aclose(self) -> None:
        if os.getpid() == self._owner.pid:
            _open.discard(self)
            self._closed.set()
            with self._turn:
                self._file.close()
            self._owner.close()

    async def _do(self, work: Callable[..., T], *args: Any) -> T:
        turn = partial(self._transact, work, *args)
        if not self._in_thread:
            await anyio.lowlevel.checkpoint()
            return turn()
        # A write that has begun ends, even if its caller is cancelled.
        with anyio.CancelScope(shield=True):
            done = await run_sync(turn)
        return done

    def _transact(self, work: Callable[..., T], *args: Any) -> T:
        if os.getpid() != self._owner.pid:
            raise StoreUnavailableError(
                "a forked process cannot use the checkpointer of its parent",
                hint="open a SQLiteCheckpointer in each process",
            )
        with self._turn:
            return self._in_transaction(work, *args)

    def _in_transaction(self, work: Callable[..., T], *args: Any) -> T:
        try:
            self._begin()
            done = work(self._file, *args)
            self._file.execute("COMMIT")
            return done
        except BaseException as error:
            self._tables.forget()
            self._roll_back()
            if isinstance(error, sqlite3.Error | OSError):
                _log.error("the store of threads failed: %s", error)
                raise StoreUnavailableError(
                    "the threads cannot be read or written",
                    hint="the log of toolcell.flow says why",
                ) from error
            raise

    def _begin(self) -> None:
        self._owner.restore()
        database: SharedDatabase = self._file
        database.begin()

    def _roll_back(self) -> None:
        try:
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
        except sqlite3.Error:
            _log.debug("nothing to roll back", exc_info=True)

    def _lives(self, name: str) -> bool:
        return self._owner.state_of(name) == "alive"

    def release_in_child(self) -> None:
        """Close a forked process's copy of the lease, so that its parent can die."""
        self._owner.close()


def _repeat(work: Callable[[], None], end: threading.Event) -> None:
    """Do something until the store answers, or is closed."""
    while not end.wait(_BETWEEN_TRIES):
        with suppress(StoreUnavailableError):
            return work()


_open: WeakSet[SQLiteCheckpointer] = WeakSet()


def _release_in_child() -> None:
    for store in list(_open):
        store.release_in_child()


in_each_child(_release_in_child)
