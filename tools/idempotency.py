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
from pydantic_core import from_json, to_json

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


class Idempotency(ABC):
    """Keys of calls and what came of them.

    An instance belongs to one event loop; `SQLiteIdempotency` on one file joins
    several loops and processes.
    """

    def __init__(self) -> None:
        self._flights: dict[str, Body] = {}
        """Keys that runs of this event loop hold."""

        self._ends: dict[str, anyio.Event] = {}
        """Set when a run that others wait for gives its key up."""

    def take(self, key: str, body: Body, *, repeatable: bool) -> bool:
        """Claim a key if it is free right now; if not, `claim` knows more.

        Args:
            key: What must happen once.
            body: What is asked for.
            repeatable: As for `claim`.

        Raises:
            StoreUnavailableError: The keys cannot be read or written.
        """
        if key in self._flights or self._take(key, body, repeatable) is not None:
            return False
        self._flights[key] = body
        return True

    async def claim(
        self, key: str, body: Body, *, repeatable: bool
    ) -> ToolResult | None:
        """Return the result of an earlier run, or None: the key is the caller's.

        What the run used is not in it: who asks again uses nothing.

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
            held = self._flights.get(key)
            if held is not None:
                _check(same=held.text == body.text)
                await self._ends.setdefault(key, anyio.Event()).wait()
                continue
            entry = self._take(key, body, repeatable)
            if entry is None:
                self._flights[key] = body
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
        body = self._flights.pop(key)
        try:
            self._keep(key, body, result)
        finally:
            self._wake(key)

    def forget(self, key: str) -> None:
        """End a claimed key as if it had never been asked for."""
        body = self._flights.pop(key)
        try:
            self._drop(key, body)
        finally:
            self._wake(key)

    def doubt(self, key: str) -> None:
        """End a claimed key of which nobody knows what its run did."""
        body = self._flights.pop(key)
        try:
            self._suspect(key, body)
        finally:
            self._wake(key)

    def _wake(self, key: str) -> None:
        ended = self._ends.pop(key, None)
        if ended is not None:
            ended.set()

    @abstractmethod
    def _take(self, key: str, body: Body, repeatable: bool) -> Entry | None:
        """Return what stands under the key, or None: it is now running, by us."""

    @abstractmethod
    def _keep(self, key: str, body: Body, result: ToolResult) -> None: ...

    @abstractmethod
    def _drop(self, key: str, body: Body) -> None: ...

    @abstractmethod
    def _suspect(self, key: str, body: Body) -> None: ...


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
    """What stands under a key.

    Kept as JSON: nobody can change it, and it is small, and nothing that Python would
    look through for garbage, each time that it does.
    """

    tool: str
    arguments: dict[str, JsonValue]
    state: State
    expires_at: float
    call_id: str = ""
    name: str = ""
    content: JsonValue = None

    def result(self) -> ToolResult | None:
        """Return what later calls get, who have used nothing."""
        if self.state != "done":
            return None
        return ToolResult(call_id=self.call_id, name=self.name, content=self.content)


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
        # Oldest first: an entry is put in when its key ends.
        self._ended: dict[str, bytes] = {}

    def take(self, key: str, body: Body, *, repeatable: bool) -> bool:
        if key in self._ended:
            return super().take(key, body, repeatable=repeatable)
        free = key not in self._flights
        if free:
            self._flights[key] = body
        return free

    def _take(self, key: str, body: Body, repeatable: bool) -> Entry | None:
        self._remove_expired()
        kept = self._standing(key)
        if kept is not None and not (repeatable and kept.state == "unknown"):
            same = Body(kept.tool, kept.arguments).text == body.text
            return Entry(same=same, state=kept.state, result=kept.result())
        return None

    def _keep(self, key: str, body: Body, result: ToolResult) -> None:
        ends, content = self._clock() + self._ttl, result.content
        self._put(key, (*body, "done", ends, result.call_id, result.name, content))

    def _drop(self, key: str, body: Body) -> None:
        # A key that runs stands in no table of ours.
        return

    def _suspect(self, key: str, body: Body) -> None:
        self._put(key, (*body, "unknown", self._clock() + self._ttl))

    def _standing(self, key: str) -> _Kept | None:
        kept = self._ended.get(key)
        return None if kept is None else _Kept(*from_json(kept))

    def _put(self, key: str, kept: tuple[JsonValue, ...]) -> None:
        # At the end of the line, also where it stood before.
        self._ended.pop(key, None)
        self._ended[key] = to_json(kept)
        if len(self._ended) > self._max_entries:
            del self._ended[next(iter(self._ended))]

    def _remove_expired(self) -> None:
        now = self._clock()
        while self._ended:
            oldest = next(iter(self._ended))
            kept = self._standing(oldest)
            if kept is not None and kept.expires_at > now:
                return
            del self._ended[oldest]
