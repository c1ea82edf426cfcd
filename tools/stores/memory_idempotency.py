"""Idempotency keys in memory: they end with the process."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from operator import attrgetter
from typing import NamedTuple

from pydantic import JsonValue
from pydantic_core import from_json, to_json

from toolcell.core import ToolResult

from .idempotency import CallBody, Idempotency, KeyEntry, KeyState, too_many_keys

_SHORT_KEY = 200
_REMOVED_AT_ONCE = 1000


class _StoredEntry(NamedTuple):
    """The entry of a key.

    It is stored as JSON, which is small and cannot be changed, and which the garbage
    collector does not look through.
    """

    tool: str
    arguments: dict[str, JsonValue] | str
    """A hash of the body where there is no room for the arguments."""

    state: KeyState
    call_id: str = ""
    name: str = ""
    content: JsonValue = None

    def result(self) -> ToolResult | None:
        """Return the result for later calls; it has no usage."""
        if self.state != "done":
            return None
        return ToolResult(call_id=self.call_id, name=self.name, content=self.content)

    def is_of(self, body: CallBody) -> bool:
        """Tell whether it belongs to the same request."""
        if isinstance(self.arguments, str):
            return self.arguments == body.hashed
        return CallBody(self.tool, self.arguments).text == body.text

    def small(self) -> _StoredEntry:
        """Return the part that is stored when there is no room for all of it."""
        assert not isinstance(self.arguments, str)
        hashed = CallBody(self.tool, self.arguments).hashed
        state: KeyState = "gone" if self.state == "done" else self.state
        return _StoredEntry("", hashed, state)


class MemoryIdempotency(Idempotency):
    """Idempotency keys in memory: they end with the process.

    Args:
        ttl_seconds: Seconds for which a result is stored; default an hour. When it is
            reached the key is free again.
        max_entries: Ended keys of one agent; default 100,000. When it is reached the
            agent's calls under new keys are refused; the error says when a key ends.
        max_bytes: Bytes of arguments and results, as JSON; default 64 MiB. When it is
            reached the oldest of the agent that has most are dropped, but not a new
            result. Their keys stay: a repeated call fails and says that it ran, and a
            tool that may be repeated runs again.
        clock: Returns seconds that do not go backwards.
    """

    def __init__(
        self,
        *,
        ttl_seconds: float = 3600.0,
        max_entries: int = 100_000,
        max_bytes: int = 64 * 1_048_576,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._ttl = ttl_seconds
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._bytes = 0
        self._clock = clock
        self._agents: dict[str, _AgentKeys] = {}
        self._first_ends: list[tuple[float, str]] = []
        """A heap with one pair for each agent; its first key expires no earlier."""

    def _claim_if_free(
        self, key: str, body: CallBody, repeatable: bool
    ) -> KeyEntry | None:
        now = self._clock()
        self._remove_expired(now)
        mine = self._agents.get(body.agent) or _AgentKeys()
        found = mine.ended.get(_short(key))
        if found is not None and found.expires_at > now:
            stored = _StoredEntry(*from_json(found.entry))
            if repeatable and stored.state != "done":
                return None
            result = stored.result()
            return KeyEntry(same=stored.is_of(body), state=stored.state, result=result)
        if len(mine.ended) >= self._max_entries:
            wait = mine.oldest[1].expires_at - now
            if wait > 0:
                raise too_many_keys(self._max_entries, wait)
        return None

    def _store_result(self, key: str, body: CallBody, result: ToolResult) -> None:
        self._put(key, body, "done", result.call_id, result.name, result.content)

    def _delete(self, key: str, body: CallBody) -> None:
        # A running key is in no table.
        return

    def _mark_unknown(self, key: str, body: CallBody) -> None:
        self._put(key, body, "unknown")

    def _put(self, key: str, body: CallBody, *more: JsonValue) -> None:
        key = _short(key)
        now = self._clock()
        ended = _Ended(now + self._ttl, to_json((body.tool, body.arguments, *more)))
        mine = self._agents.get(body.agent)
        if mine is None:
            mine = self._agents[body.agent] = _AgentKeys()
            heappush(self._first_ends, (ended.expires_at, body.agent))
        # The newest is last.
        self._remove(mine, key)
        mine.ended[key] = ended
        mine.whole[key] = None
        self._count(mine, len(ended.entry))
        self._make_room(now, mine if more[0] == "done" else None)

    def _make_room(self, now: float, new: _AgentKeys | None) -> None:
        """Drop entries where most are, if all are too large.

        An agent whose entries fit in an equal part of the room loses none, and the
        agent `new` keeps its last one, which is a new result.
        """

        while self._bytes > self._max_bytes:
            if self._first_ends[0][0] <= now:
                self._remove_expired(now)
                continue
            part = self._max_bytes / len(self._agents)
            most = max(
                (each for each in self._agents.values() if each.can_lose(part, new)),
                key=attrgetter("bytes"),
                default=None,
            )
            if most is None:
                return
            while self._bytes > self._max_bytes and most.can_lose(part, new):
                self._shrink(most)

    def _remove(self, mine: _AgentKeys, key: str) -> None:
        removed = mine.ended.pop(key, None)
        if removed is not None and key in mine.whole:
            del mine.whole[key]
            self._count(mine, -len(removed.entry))

    def _shrink(self, agent: _AgentKeys) -> None:
        """Drop the arguments and the result of the oldest key that has them."""
        key, _ = agent.whole.popitem(last=False)
        expires_at, whole = agent.ended[key]
        small = to_json(_StoredEntry(*from_json(whole)).small())
        agent.ended[key] = _Ended(expires_at, small)
        self._count(agent, -len(whole))

    def _count(self, agent: _AgentKeys, size: int) -> None:
        agent.bytes += size
        self._bytes += size

    def _remove_expired(self, now: float) -> None:
        """Remove the first keys that expired, whichever agents have them."""
        for _ in range(_REMOVED_AT_ONCE):
            if not self._first_ends or self._first_ends[0][0] > now:
                return
            agent = self._first_ends[0][1]
            mine = self._agents[agent]
            key, ended = mine.oldest
            if ended.expires_at <= now:
                self._remove(mine, key)
            if mine.ended:
                heapreplace(self._first_ends, (mine.oldest[1].expires_at, agent))
            else:
                heappop(self._first_ends)
                del self._agents[agent]


class _Ended(NamedTuple):
    """An ended key."""

    expires_at: float
    entry: bytes


class _AgentKeys:
    """The ended keys of an agent, oldest first: an entry is put in when its key ends.

    The first key of a plain dict is behind all that were taken out before it.
    """

    def __init__(self) -> None:
        self.ended: OrderedDict[str, _Ended] = OrderedDict()
        self.whole: OrderedDict[str, None] = OrderedDict()
        """Those whose arguments and results are stored."""

        self.bytes = 0
        """Bytes of these."""

    def can_lose(self, part: float, new: _AgentKeys | None) -> bool:
        """Return True if it has more bytes than a part, and an entry to drop.

        Args:
            part: Bytes that each agent may have.
            new: The agent whose last entry stays; None: there is no such agent.
        """
        stay = 1 if self is new else 0
        return self.bytes > part and len(self.whole) > stay

    @property
    def oldest(self) -> tuple[str, _Ended]:
        """The key that expires first."""
        return next(iter(self.ended.items()))


def _short(key: str) -> str:
    """Return a key that takes little room, though it may hold arguments."""
    if len(key) <= _SHORT_KEY:
        return key
    return hashlib.sha256(key.encode()).hexdigest()
