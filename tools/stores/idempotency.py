"""Idempotency: the same call twice is one run."""

from __future__ import annotations

import hashlib
import logging
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from operator import attrgetter
from typing import Literal, NamedTuple

import anyio
from pydantic import JsonValue
from pydantic_core import from_json, to_json

from toolcell.core import (
    InvalidInputError,
    StoreUnavailableError,
    ToolCall,
    ToolExecutionError,
    ToolResult,
)
from toolcell.core.text.canonical_json import canonical_json

from ..definition.tool import Tool
from ..definition.validation import Arguments

_FIRST_PAUSE_SECONDS = 0.01
_MAX_PAUSE_SECONDS = 0.5
_SHORT_KEY = 200
_REMOVED_AT_ONCE = 1000
_log = logging.getLogger(__name__)

KeyState = Literal["running", "done", "unknown", "gone"]
"""The state of a run; `gone`: it is done, and its result is no longer stored."""


class CallBody(NamedTuple):
    """The request under a key; its text is made only when it is needed."""

    tool: str
    """Name and version."""

    arguments: dict[str, JsonValue]

    agent: str = ""
    """The agent that asks, which has room of its own."""

    @property
    def text(self) -> str:
        """The canonical text: equal for equal requests."""
        return f"{self.tool}/{canonical_json(self.arguments).decode()}"

    @property
    def hashed(self) -> str:
        """A hash of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEntry:
    """The entry of a key."""

    same: bool
    """True if the request is the one that is made now."""

    state: KeyState
    result: ToolResult | None = None


class Idempotency(ABC):
    """A store of idempotency keys, and of the results of the runs that had them.

    A key is claimed before a tool runs, and ended after it: *finished* with a result
    that later calls get, *forgotten* if the tool failed, or left *in doubt* if the tool
    was stopped half-way and its effect is unknown. A call whose key is held by another
    call waits for its end. Results that take too much room are dropped, the oldest
    first, but their keys stay: a call that ran is not run again because its result was
    large.

    An instance belongs to one event loop. `SQLiteIdempotency` on one file joins several
    loops and processes.
    """

    def __init__(self) -> None:
        self._flights: dict[str, CallBody] = {}
        """Keys that runs of this event loop hold."""

        self._ends: dict[str, anyio.Event] = {}
        """Events that are set when a run that others wait for ends its key."""

    def take(self, key: str, body: CallBody, *, repeatable: bool) -> bool:
        """Claim a key if it is free right now; if it is not, use `claim`.

        Args:
            key: The key.
            body: The request.
            repeatable: As for `claim`.

        Raises:
            StoreUnavailableError: The keys cannot be read or written, or the agent has
                as many as it may.
        """
        if (
            key in self._flights
            or self._claim_if_free(key, body, repeatable) is not None
        ):
            return False
        self._flights[key] = body
        return True

    async def claim(
        self, key: str, body: CallBody, *, repeatable: bool
    ) -> ToolResult | None:
        """Return the result of an earlier run, or None: the key is the caller's.

        The result has no usage: a repeated call is free. A caller that got the key
        ends it with `finish`, `forget` or `doubt`.

        Args:
            key: The key.
            body: The request.
            repeatable: Whether a second run does no harm. If so, a key whose outcome is
                unknown, or whose result is gone, is the caller's again.

        Raises:
            InvalidInputError: Another request was made under this key.
            ToolExecutionError: An earlier run was stopped half-way, and its outcome
                is not known; or it is done, and its result is no longer stored.
            StoreUnavailableError: The keys cannot be read or written, or the agent has
                as many as it may.
        """
        pause = _FIRST_PAUSE_SECONDS
        while True:
            held = self._flights.get(key)
            if held is not None:
                _check(same=held.text == body.text)
                await self._ends.setdefault(key, anyio.Event()).wait()
                continue
            entry = self._claim_if_free(key, body, repeatable)
            if entry is None:
                self._flights[key] = body
                return None
            _check(same=entry.same)
            if entry.state == "unknown":
                raise _unknown_outcome()
            if entry.state == "gone":
                raise _result_gone()
            if entry.result is not None:
                return entry.result
            # Another process runs it; SQLite cannot call us when it ends.
            await anyio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    def finish(self, key: str, result: ToolResult) -> None:
        """End a claimed key with the result that later calls get."""
        body = self._flights.pop(key)
        try:
            self._store_result(key, body, result)
        finally:
            if self._ends:
                self._wake(key)

    def forget(self, key: str) -> None:
        """End a claimed key as if it had never been claimed."""
        body = self._flights.pop(key)
        try:
            self._delete(key, body)
        finally:
            if self._ends:
                self._wake(key)

    def doubt(self, key: str) -> None:
        """End a claimed key whose run has an unknown outcome."""
        body = self._flights.pop(key)
        try:
            self._mark_unknown(key, body)
        finally:
            if self._ends:
                self._wake(key)

    def park(self, keys: Iterable[str]) -> None:
        """Note that a run under claimed keys waits for a person before it begins.

        If its process ends meanwhile, the keys are free: nothing was done.

        Raises:
            StoreUnavailableError: It cannot be noted.
        """
        # Keys in memory end with the process.
        return

    def unpark(self, keys: Iterable[str]) -> None:
        """Note that a run under parked keys begins now.

        Raises:
            StoreUnavailableError: It cannot be noted, or somebody else has the keys.
        """
        return

    def _wake(self, key: str) -> None:
        ended = self._ends.pop(key, None)
        if ended is not None:
            ended.set()

    @abstractmethod
    def _claim_if_free(
        self, key: str, body: CallBody, repeatable: bool
    ) -> KeyEntry | None:
        """Return the entry of the key, or None: the key is now ours, and running."""

    @abstractmethod
    def _store_result(self, key: str, body: CallBody, result: ToolResult) -> None: ...

    @abstractmethod
    def _delete(self, key: str, body: CallBody) -> None: ...

    @abstractmethod
    def _mark_unknown(self, key: str, body: CallBody) -> None: ...


def _check(*, same: bool) -> None:
    if not same:
        raise InvalidInputError(
            "this call id was used for another call",
            hint="give each call its own id",
        )


def _unknown_outcome() -> ToolExecutionError:
    return ToolExecutionError(
        "an earlier run of this call was stopped half-way; what it did is not known",
        hint="look whether it took effect; use a new call id to run it again",
        details={"outcome": "unknown"},
    )


def _result_gone() -> ToolExecutionError:
    return ToolExecutionError(
        "this call ran already; its result was large and is no longer stored",
        hint="use a new call id to run it again",
        details={"outcome": "done"},
    )


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
            reached the oldest of the agent that has most are dropped. Their keys stay:
            a repeated call fails and says that it ran, and a tool that may be repeated
            runs again.
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
        while self._bytes > self._max_bytes:
            if self._first_ends[0][0] <= now:
                self._remove_expired(now)
                continue
            most = max(self._agents.values(), key=attrgetter("bytes"))
            part = self._max_bytes / len(self._agents)
            while self._bytes > self._max_bytes and most.bytes > part:
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

    @property
    def oldest(self) -> tuple[str, _Ended]:
        """The key that expires first."""
        return next(iter(self.ended.items()))


def _short(key: str) -> str:
    """Return a key that takes little room, though it may hold arguments."""
    if len(key) <= _SHORT_KEY:
        return key
    return hashlib.sha256(key.encode()).hexdigest()


def too_many_keys(most: int, seconds: float) -> StoreUnavailableError:
    """Return the error of an agent that has all its keys, until the oldest ends."""
    return StoreUnavailableError(
        f"the agent has made {most} calls whose ids are still remembered",
        hint="call less often: an id is remembered for its time",
        details={"retry_after": round(max(seconds, 0.0), 3)},
    )


CallKey = tuple[str, CallBody]
"""A key, and the request that is made under it."""


def call_keys(
    call: ToolCall, tool: Tool, arguments: Arguments, run_id: str | None
) -> list[CallKey]:
    """Return the keys under which a call runs at most once.

    One is the agent's call id. A tool that is declared idempotent has another one: its
    arguments, within a run of the agent.
    """
    name = call.agent_id or ""
    agent, version = f"{len(name)}:{name}", f"{tool.name}/{tool.version}"
    keys = [(f"call/{agent}/{call.id}", CallBody(version, call.arguments, name))]
    if tool.idempotent:
        # With defaults: whether they were sent or left out, the call is the same.
        body = CallBody(version, arguments.json, name)
        run = length_prefixed(run_id)
        keys.append((f"arguments/{agent}/{run}/{body.text}", body))
    return keys


def end_key(
    store: Idempotency,
    key: str,
    result: ToolResult | None,
    in_doubt: bool,
    repeatable: bool,
) -> None:
    """End a key by the result of its run; None: the run was stopped."""
    try:
        if result is not None and result.ok:
            store.finish(key, result)
        elif in_doubt and not repeatable:
            store.doubt(key)
        else:
            store.forget(key)
    except StoreUnavailableError as error:
        # The key stays as claimed, and a later call finds its outcome unknown.
        _log.warning("an idempotency key was not ended: %s", error)


def length_prefixed(name: str | None) -> str:
    """Return a name that cannot run into what follows it in a key."""
    return f"{len(name or '')}:{name or ''}"
