"""The same call twice is one run: keys, and what came of the run that had them.

A key is claimed before a tool runs and ended after it: *finished* with a result
that later calls get, *forgotten* when the tool failed, or left *in doubt* when the
tool was stopped half-way and nobody knows what it did. Who asks for a key that
another call holds waits for its end.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import anyio
from pydantic import JsonValue

from toolcell.core import InvalidInputError, ToolExecutionError, ToolResult

from .validation import canonical_json

_FIRST_PAUSE_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 0.5

State = Literal["running", "done", "unknown"]


class Body(NamedTuple):
    """What is asked for under a key; its text is made only when it is needed."""

    tool: str
    """Name and version."""

    arguments: dict[str, JsonValue]

    @property
    def text(self) -> str:
        """The same for the same request, whatever the order of its keys."""
        return f"{self.tool}/{canonical_json(self.arguments)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What stands under a key."""

    same: bool
    """Whether it is the body that is asked for now."""

    state: State
    result: ToolResult | None = None


@dataclass(slots=True)
class _Flight:
    """A run of this event loop that holds a key; leaving it wakes who waits."""

    body: Body
    ended: anyio.Event | None = None
    """Made by the first who waits."""

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        if self.ended is not None:
            self.ended.set()


class Idempotency(ABC):
    """Keys of calls and what came of them.

    An instance belongs to one event loop; `SQLiteIdempotency` on one file joins
    several loops and processes.
    """

    def __init__(self) -> None:
        self._flights: dict[str, _Flight] = {}

    async def claim(
        self, key: str, body: Body, *, repeatable: bool
    ) -> ToolResult | None:
        """Return the result of an earlier run, or None: the key is the caller's.

        The caller then ends the key with `finish`, `forget` or `doubt`.

        Args:
            key: What must happen once.
            body: What is asked for.
            repeatable: Whether running it twice does no harm. If so, a key whose
                outcome is unknown is the caller's again.

        Raises:
            InvalidInputError: Something else was asked for under this key.
            ToolExecutionError: An earlier run was stopped half-way, and its outcome
                is not known.
            StoreUnavailableError: The keys cannot be read or written.
        """
        pause = _FIRST_PAUSE_SECONDS
        while True:
            flight = self._flights.get(key)
            if flight is not None:
                _check(same=flight.body.text == body.text)
                flight.ended = flight.ended or anyio.Event()
                await flight.ended.wait()
                continue
            entry = self._take(key, body, repeatable)
            if entry is None:
                self._flights[key] = _Flight(body)
                return None
            _check(same=entry.same)
            if entry.state == "unknown":
                raise _unknown_outcome()
            if entry.result is not None:
                return entry.result
            # Another process runs it; SQLite cannot call us when it ends.
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def finish(self, key: str, result: ToolResult) -> None:
        """End a claimed key with the result that later calls get."""
        with self._flights.pop(key):
            self._keep(key, result)

    def forget(self, key: str) -> None:
        """End a claimed key as if it had never been asked for."""
        with self._flights.pop(key):
            self._drop(key)

    def doubt(self, key: str) -> None:
        """End a claimed key of which nobody knows what its run did."""
        with self._flights.pop(key):
            self._suspect(key)

    @abstractmethod
    def _take(self, key: str, body: Body, repeatable: bool) -> Entry | None:
        """Return what stands under the key, or None: it is now running, by us."""

    @abstractmethod
    def _keep(self, key: str, result: ToolResult) -> None: ...

    @abstractmethod
    def _drop(self, key: str) -> None: ...

    @abstractmethod
    def _suspect(self, key: str) -> None: ...


def _check(*, same: bool) -> None:
    if not same:
        raise InvalidInputError(
            "this call id was used for another call",
            hint="give each call an id of its own",
        )


def _unknown_outcome() -> ToolExecutionError:
    return ToolExecutionError(
        "an earlier run of this call was stopped half-way; what it did is not known",
        hint="look whether it took effect; use a new call id to run it again",
        details={"outcome": "unknown"},
    )


class _Kept(NamedTuple):
    body: Body
    state: State
    result: ToolResult | None
    expires_at: float


class MemoryIdempotency(Idempotency):
    """Keys that end with the process.

    Args:
        ttl_seconds: How long a result is handed out. When it is reached the key is
            free again.
        max_entries: How many ended keys are kept. When it is reached the oldest
            one goes.
        clock: Returns seconds that do not go backwards.
    """

    def __init__(
        self,
        *,
        ttl_seconds: float = 3600.0,
        max_entries: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._ttl = ttl_seconds
        self._max_entries = max_entries
        self._clock = clock
        self._running: dict[str, Body] = {}
        # Oldest first: an entry is put in when its key ends.
        self._ended: dict[str, _Kept] = {}

    def _take(self, key: str, body: Body, repeatable: bool) -> Entry | None:
        self._remove_expired()
        kept = self._ended.get(key)
        if kept is not None and not (repeatable and kept.state == "unknown"):
            same, result = kept.body.text == body.text, kept.result
            own = None if result is None else _own(result)
            return Entry(same=same, state=kept.state, result=own)
        self._running[key] = body
        return None

    def _keep(self, key: str, result: ToolResult) -> None:
        self._put(key, "done", _own(result))

    def _drop(self, key: str) -> None:
        del self._running[key]

    def _suspect(self, key: str) -> None:
        self._put(key, "unknown", None)

    def _put(self, key: str, state: State, result: ToolResult | None) -> None:
        body, expires_at = self._running.pop(key), self._clock() + self._ttl
        self._ended.pop(key, None)
        self._ended[key] = _Kept(body, state, result, expires_at)
        if len(self._ended) > self._max_entries:
            del self._ended[next(iter(self._ended))]

    def _remove_expired(self) -> None:
        now = self._clock()
        while self._ended:
            oldest = next(iter(self._ended))
            if self._ended[oldest].expires_at > now:
                return
            del self._ended[oldest]


def _own(result: ToolResult) -> ToolResult:
    """Return a result whose content nobody else can change."""
    shared = isinstance(result.content, list | dict)
    return result.model_copy(deep=True) if shared else result
