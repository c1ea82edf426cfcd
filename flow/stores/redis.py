"""Threads in Redis, for owners on any number of machines."""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import anyio
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync

from toolcell.core import ConfigError, StoreUnavailableError
from toolcell.core.redis_client import open_redis

from . import errors, redis_scripts
from .base import Lease, Stored
from .checkpointer import Checkpointer
from .reading import HeadReader, read_head
from .records import ThreadHead, ThreadStatus

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_THREADS = 8
_PAGE = 1_000
_REFUSALS: Mapping[bytes, Callable[[str], Exception]] = {
    b"busy": errors.thread_busy,
    b"lost": errors.lease_lost,
    b"missing": errors.no_thread,
    b"taken": errors.checkpoint_exists,
}


class RedisCheckpointer(Checkpointer):
    """Threads in a Redis server; needs the extra `redis`.

    Each write is one script, which looks at the owner's token first. The owner renews
    its leases in its own thread, so a thread whose owner died is free after
    `lease_seconds` at the latest. An owner that slept through its lease goes on if
    nobody has taken the thread meanwhile; else its next write is refused.

    The server's `appendonly` decides what survives its restart. All keys are in one
    slot of a cluster. States and results are stored as they are, secrets included.

    Args:
        url: The server, such as `redis://host:6379/0`.
        prefix: Start of every key, so that several hosts can share a server.
        lease_seconds: Seconds after which the thread of an owner that does not renew
            its lease is free; default 15.
        deadline: Seconds to wait for the server; default 0.5. When it is reached
            StoreUnavailableError is raised; the write may happen yet, as a whole.

    Raises:
        ConfigError: The redis package is missing, or the URL, the prefix or a number is
            not valid.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "toolcell",
        lease_seconds: float = 15.0,
        deadline: float = 0.5,
    ) -> None:
        super().__init__()
        if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,64}", prefix):
            raise ConfigError(
                f"{prefix!r} cannot be a prefix of keys",
                hint="use 1 to 64 letters, digits and `_.:-`",
            )
        if not (lease_seconds > 0 and deadline > 0):
            raise ConfigError(
                "lease_seconds and deadline are above 0", hint="such as 15 and 0.5"
            )
        self._client, self._error = open_redis(url, deadline)
        self._keys = [f"{{{prefix}}}:flow:"]
        self._scripts: dict[str, Any] = {}
        self._reader = HeadReader()
        self._owner = secrets.token_hex(8)
        self._milliseconds = max(1, round(lease_seconds * 1000))
        self._held: dict[str, int] = {}
        """The tokens of the leases to renew, by thread."""

        self._turn = RunVar[anyio.CapacityLimiter](f"flow-redis-{self._owner}")
        self._closed = threading.Event()
        self._renewing: threading.Thread | None = None

    async def create(self, head: ThreadHead, checkpoint: bytes) -> Lease:
        text, thread = head.to_bytes(), head.thread_id
        place = [head.checkpoint, checkpoint, head.graph, head.status]
        values = [redis_scripts.CREATE, thread, [text, *place]]
        return await self._do(self._own, *values, shield=True)

    async def claim(self, thread_id: str, *, steal: bool = False) -> Lease:
        values = [redis_scripts.CLAIM, thread_id, [int(steal)]]
        return await self._do(self._own, *values, shield=True)

    def _own(self, script: str, thread: str, rest: list[Any]) -> Lease:
        values = [thread, self._owner, self._milliseconds, *rest]
        [token] = self._run(script, *values)
        self._held[thread] = int(token)
        if self._renewing is None:
            self._renewing = threading.Thread(target=self._renew, daemon=True)
            self._renewing.start()
        return Lease(thread, int(token))

    async def release(self, lease: Lease) -> None:
        if self._held.get(lease.thread_id) == lease.token:
            del self._held[lease.thread_id]
        await self._write(redis_scripts.RELEASE, lease)

    async def append(
        self, lease: Lease, records: Sequence[bytes], head: ThreadHead | None = None
    ) -> None:
        new = ["", "", "", ""] if head is None else _head_values(head)
        await self._write(redis_scripts.APPEND, lease, *new, *records)

    async def commit(
        self, lease: Lease, checkpoint: bytes, head: ThreadHead, *, whole: bool
    ) -> None:
        rest = [*_head_values(head), int(whole), checkpoint]
        await self._write(redis_scripts.COMMIT, lease, *rest)

    async def _write(self, script: str, lease: Lease, *rest: Any) -> None:
        values = [lease.thread_id, self._owner, lease.token, *rest]
        await self._do(self._run, script, *values, shield=True)

    async def put_once(
        self, thread_id: str, key: str, record: bytes, *, at: str | None = None
    ) -> bool:
        values = [redis_scripts.PUT_ONCE, thread_id, key, record, at or ""]
        [made] = await self._do(self._run, *values, shield=True)
        return bool(made)

    async def read(
        self, thread_id: str, checkpoint_id: str | None = None
    ) -> Stored | None:
        return await self._do(self._read, thread_id, checkpoint_id)

    def _read(self, thread: str, checkpoint: str | None) -> Stored | None:
        values = [redis_scripts.READ, thread, checkpoint or ""]
        state, *found = self._answer(*values)
        if state == b"missing":
            return None
        if state != b"ok":
            raise errors.no_checkpoint(thread, found[0].decode())
        return _stored(thread, found)

    async def checkpoints(
        self, thread_id: str, limit: int, before: str | None = None
    ) -> list[bytes]:
        values = [redis_scripts.CHECKPOINTS, thread_id, limit, before or ""]
        [found] = await self._do(self._run, *values)
        return list(reversed(found))

    async def heads(
        self,
        *,
        graph: str | None = None,
        status: ThreadStatus | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> list[ThreadHead]:
        rows = await self._do(self._rows, graph, status, limit, before)
        return [head for _, head in rows if head is not None]

    def _rows(
        self,
        graph: str | None,
        status: ThreadStatus | None,
        limit: int | None,
        before: str | None,
    ) -> list[tuple[str, ThreadHead | None]]:
        """Return threads, of which `limit` can be read, or all."""
        names = ["*" if each is None else each for each in (graph, status)]
        rows: list[tuple[str, ThreadHead | None]] = []
        left = _PAGE if limit is None else limit
        while left > 0:
            [found] = self._run(redis_scripts.HEADS, before or "", *names, left)
            for name, text in zip(found[::2], found[1::2], strict=True):
                before = name.decode(errors="backslashreplace")
                rows.append((before, self._reader.read(before, text)))
            if len(found) < 2 * left:
                break
            if limit is not None:
                left = limit - sum(head is not None for _, head in rows)
        return rows

    async def answered(self, graph: str) -> list[str]:
        values = [redis_scripts.ANSWERED, graph]
        [found] = await self._do(self._run, *values)
        return [thread_id.decode() for thread_id in found]

    async def unreadable(self) -> list[str]:
        rows = await self._do(self._rows, None, None, None, None)
        return [thread for thread, head in rows if head is None]

    async def delete(self, thread_id: str) -> bool:
        values = [redis_scripts.DELETE, thread_id]
        [found] = await self._do(self._run, *values, shield=True)
        return bool(found)

    async def aclose(self) -> None:
        self._closed.set()
        await self._do(self._end)

    def _end(self) -> None:
        # A connection must not be closed while the thread reads from it.
        if self._renewing is not None:
            self._renewing.join()
        self._client.close()

    async def _do(
        self, work: Callable[..., _T], *args: Any, shield: bool = False
    ) -> _T:
        # A write that has begun ends, even if its caller is cancelled.
        with anyio.CancelScope(shield=shield):
            done = await run_sync(partial(work, *args), limiter=self._limiter())
        return done

    def _limiter(self) -> anyio.CapacityLimiter:
        try:
            return self._turn.get()
        except LookupError:
            made = anyio.CapacityLimiter(_THREADS)
            self._turn.set(made)
            return made

    def _run(self, script: str, thread: str, *rest: Any) -> list[Any]:
        """Return what a script found. Raises the error for a refusal."""
        state, *found = self._answer(script, thread, *rest)
        if state != b"ok":
            raise _REFUSALS[state](thread)
        return found

    def _answer(self, script: str, *values: Any) -> list[Any]:
        ready = self._scripts.get(script) or self._client.register_script(script)
        self._scripts[script] = ready
        try:
            answer: list[Any] = ready(keys=self._keys, args=values)
        except self._error as error:
            _log.error("the store of threads failed: %s", error)
            raise StoreUnavailableError(
                "the threads cannot be read or written",
                hint="the log of toolcell.flow says why",
            ) from error
        return answer

    def _renew(self) -> None:
        """Renew the leases until the store is closed."""
        while not self._closed.wait(self._milliseconds / 3000):
            for thread, token in list(self._held.items()):
                values = [thread, self._owner, self._milliseconds, token]
                try:
                    self._answer(redis_scripts.RENEW, *values)
                except StoreUnavailableError:
                    # The token decides whether the owner may go on.
                    break


def _head_values(head: ThreadHead) -> list[Any]:
    return [head.to_bytes(), head.checkpoint, head.graph, head.status]


def _stored(thread: str, found: list[Any]) -> Stored:
    """Return a thread whose sums are as they should be."""
    (text, head_sum, chain, latest), wanted, first, last, records, sums, *rest = found
    if (
        _chained(chain, text) != head_sum
        or latest.decode() != read_head(text).checkpoint
    ):
        raise errors.row_changed(thread, "the head")
    begin, end = int(first), int(last)
    reached = sums.pop(0) if begin and sums else thread.encode()
    if not len(records) == len(sums) == end - begin + 1:
        raise errors.row_changed(thread, "a checkpoint")
    for number, (record, checksum) in enumerate(zip(records, sums, strict=True), begin):
        reached = _chained(reached, record)
        if reached != checksum:
            raise errors.row_changed(thread, f"checkpoint row {number}")
    if wanted != latest:
        return Stored(head=read_head(text), checkpoints=records)
    journal, answers = rest
    for record in journal:
        reached = _chained(reached, record)
    if reached != chain:
        raise errors.row_changed(thread, "a row")
    return Stored(
        head=read_head(text),
        checkpoints=records,
        journal=journal,
        answers=_answers(thread, answers),
    )


def _answers(thread: str, pairs: list[bytes]) -> list[bytes]:
    records = []
    for key, entry in zip(pairs[::2], pairs[1::2], strict=True):
        checksum, record = entry[:40], entry[40:]
        if _chained(f"{thread}/".encode() + key, record) != checksum:
            raise errors.row_changed(thread, "an answer")
        records.append(record)
    return records


def _chained(before: bytes, text: bytes) -> bytes:
    """Return the checksum that the server computes; it is no signature."""
    return hashlib.sha1(before + text, usedforsecurity=False).hexdigest().encode()
