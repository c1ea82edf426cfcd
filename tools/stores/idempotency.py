"""Idempotency: the same call twice is one run."""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import anyio
from pydantic import JsonValue

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
