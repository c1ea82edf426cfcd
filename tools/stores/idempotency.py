"""The same call twice is one run: keys, and what came of the run that had them.

A key is claimed before a tool runs and ended after it: *finished* with a result
that later calls get, *forgotten* when the tool failed, or left *in doubt* when the
tool was stopped half-way and nobody knows what it did. Who asks for a key that
another call holds waits for its end. Where results take too much room the oldest go,
and their keys stay: a call that ran is not run again because its result was large.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import anyio
from pydantic import JsonValue
from pydantic_core import from_json, to_json

from toolcell.core import InvalidInputError, ToolExecutionError, ToolResult
from toolcell.core.text.canonical_json import canonical_json

_FIRST_PAUSE_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 0.5

KeyState = Literal["running", "done", "unknown", "gone"]
"""What became of a run; `gone`: it is done, and its result is no longer kept."""


class CallBody(NamedTuple):
    """What is asked for under a key; its text is made only when it is needed."""

    tool: str
    """Name and version."""

    arguments: dict[str, JsonValue]

    @property
    def text(self) -> str:
        """The same for the same request, whatever the order of its keys."""
        return f"{self.tool}/{canonical_json(self.arguments).decode()}"

    @property
    def hashed(self) -> str:
        """A hash of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEntry:
    """What stands under a key."""

    same: bool
    """Whether it is the body that is asked for now."""

    state: KeyState
    result: ToolResult | None = None


class Idempotency(ABC):
    """Keys of calls and what came of them.

    An instance belongs to one event loop; `SQLiteIdempotency` on one file joins
    several loops and processes.
    """

    def __init__(self) -> None:
        self._flights: dict[str, CallBody] = {}
        """Keys that runs of this event loop hold."""

        self._ends: dict[str, anyio.Event] = {}
        """Set when a run that others wait for gives its key up."""

    def take(self, key: str, body: CallBody, *, repeatable: bool) -> bool:
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
        self, key: str, body: CallBody, *, repeatable: bool
    ) -> ToolResult | None:
        """Return the result of an earlier run, or None: the key is the caller's.

        What the run used is not in it: who asks again uses nothing.

        The caller then ends the key with `finish`, `forget` or `doubt`.

        Args:
            key: What must happen once.
            body: What is asked for.
            repeatable: Whether running it twice does no harm. If so, a key whose
                outcome is unknown, or whose result is gone, is the caller's again.

        Raises:
            InvalidInputError: Something else was asked for under this key.
            ToolExecutionError: An earlier run was stopped half-way, and its outcome
                is not known; or it is done, and its result is no longer kept.
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
            if entry.state == "gone":
                raise _result_gone()
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
    def _take(self, key: str, body: CallBody, repeatable: bool) -> KeyEntry | None:
        """Return what stands under the key, or None: it is now running, by us."""

    @abstractmethod
    def _keep(self, key: str, body: CallBody, result: ToolResult) -> None: ...

    @abstractmethod
    def _drop(self, key: str, body: CallBody) -> None: ...

    @abstractmethod
    def _suspect(self, key: str, body: CallBody) -> None: ...


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


def _result_gone() -> ToolExecutionError:
    return ToolExecutionError(
        "this call ran already; its result was large and is no longer kept",
        hint="use a new call id to run it again",
        details={"outcome": "done"},
    )


class _Kept(NamedTuple):
    """What stands under a key.

    Kept as JSON: nobody can change it, and it is small, and nothing that Python would
    look through for garbage, each time that it does.
    """

    tool: str
    arguments: dict[str, JsonValue] | str
    """Where there is no room for them a hash of the body."""

    state: KeyState
    expires_at: float
    call_id: str = ""
    name: str = ""
    content: JsonValue = None

    def result(self) -> ToolResult | None:
        """Return what later calls get, who have used nothing."""
        if self.state != "done":
            return None
        return ToolResult(call_id=self.call_id, name=self.name, content=self.content)

    def is_of(self, body: CallBody) -> bool:
        """Return whether it is of the same request."""
        if isinstance(self.arguments, str):
            return self.arguments == body.hashed
        return CallBody(self.tool, self.arguments).text == body.text

    def small(self) -> _Kept:
        """Return what is left of it where there is no room for all of it."""
        assert not isinstance(self.arguments, str)
        hashed = CallBody(self.tool, self.arguments).hashed
        state: KeyState = "gone" if self.state == "done" else self.state
        return _Kept("", hashed, state, self.expires_at)


class MemoryIdempotency(Idempotency):
    """Keys that end with the process.

    Args:
        ttl_seconds: How long a result is handed out. When it is reached the key is
            free again.
        max_entries: How many ended keys are kept. When it is reached the oldest
            one goes.
        max_bytes: Bytes of arguments and results that are kept, as JSON; default 64
            MiB. When it is reached the oldest go. Their keys stay: who asks again for
            a call is told that it ran, and a tool that may be repeated runs again.
        clock: Returns seconds that do not go backwards.
    """

    def __init__(
        self,
        *,
        ttl_seconds: float = 3600.0,
        max_entries: int = 10_000,
        max_bytes: int = 64 * 1_048_576,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._ttl = ttl_seconds
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._bytes = 0
        self._clock = clock
        # Oldest first: an entry is put in when its key ends.
        self._ended: dict[str, bytes] = {}
        # Those of them that are whole, oldest first.
        self._whole: dict[str, None] = {}

    def take(self, key: str, body: CallBody, *, repeatable: bool) -> bool:
        if key in self._ended:
            return super().take(key, body, repeatable=repeatable)
        free = key not in self._flights
        if free:
            self._flights[key] = body
        return free

    def _take(self, key: str, body: CallBody, repeatable: bool) -> KeyEntry | None:
        self._remove_expired()
        kept = self._standing(key)
        if kept is not None and not (repeatable and kept.state != "done"):
            result = kept.result()
            return KeyEntry(same=kept.is_of(body), state=kept.state, result=result)
        return None

    def _keep(self, key: str, body: CallBody, result: ToolResult) -> None:
        ends, content = self._clock() + self._ttl, result.content
        self._put(key, (*body, "done", ends, result.call_id, result.name, content))

    def _drop(self, key: str, body: CallBody) -> None:
        # A key that runs stands in no table of ours.
        return

    def _suspect(self, key: str, body: CallBody) -> None:
        self._put(key, (*body, "unknown", self._clock() + self._ttl))

    def _standing(self, key: str) -> _Kept | None:
        kept = self._ended.get(key)
        return None if kept is None else _Kept(*from_json(kept))

    def _put(self, key: str, kept: tuple[JsonValue, ...]) -> None:
        # At the end of the line, also where it stood before.
        self._remove(key)
        self._ended[key] = entry = to_json(kept)
        self._whole[key] = None
        self._bytes += len(entry)
        if len(self._ended) > self._max_entries:
            self._remove(next(iter(self._ended)))
        while self._bytes > self._max_bytes and self._whole:
            self._shrink(next(iter(self._whole)))

    def _remove(self, key: str) -> None:
        self._bytes -= len(self._ended.pop(key, b""))
        self._whole.pop(key, None)

    def _shrink(self, key: str) -> None:
        del self._whole[key]
        whole = self._ended[key]
        self._ended[key] = small = to_json(_Kept(*from_json(whole)).small())
        self._bytes += len(small) - len(whole)

    def _remove_expired(self) -> None:
        now = self._clock()
        while self._ended:
            oldest = next(iter(self._ended))
            kept = self._standing(oldest)
            if kept is not None and kept.expires_at > now:
                return
            self._remove(oldest)
