"""One attempt at a call, and the record of it."""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any, Literal, Self

import anyio
from pydantic import JsonValue

from toolcell.core import Part, ToolCall, ToolcellError, ToolResult, ToolStatus
from toolcell.guard import Redactor
from toolcell.sandbox import ExecutionResult
from toolcell.sandbox.spi import RequestGate, pause_deadline

from ..definition.tool import Tool
from ..stores.record import NEVER_MADE, RecordedVerdict, ToolExecutionRecord
from .threads import ThreadJob

HeldSlots = frozenset[int]
"""The slots that a call and the calls around it hold."""

NO_SLOTS: HeldSlots = frozenset()
REFUSED_BYTES = 4_096
"""Bytes of arguments, as JSON, in the record of a call that was refused. When it is
reached the largest are left out: who is refused must not fill the disk."""

LEFT_OUT = "(left out)"
"""The name under which a record tells how much of the arguments it has not."""


class CallState:
    """The facts of a run while it goes on, and after it was cancelled."""

    held: HeldSlots = NO_SLOTS
    backend: str | None = None
    job: ThreadJob | None = None
    cpu_ms = 0
    bytes = 0
    reported: frozenset[str] = frozenset()
    """Units whose cost the tool itself reported."""

    outer: CallState | None = None
    """The run of the tool that made this call."""

    scope: anyio.CancelScope | None = None
    """Ends the run at its deadline, once that is set."""

    gate: RequestGate | None = None
    """Judges what the tool's program sends to a guarded network."""

    parts: Sequence[Part] = ()
    """Pictures and texts that the tool shows to the model; its context adds them."""

    extension = 0.0
    """Seconds by which the deadline is moved."""

    _pauses = 0
    _paused = _pause_began = _pause_left = 0.0

    def __init__(self, agent: str = "") -> None:
        self.agent = agent
        self.usage: dict[str, int | str] = {}

    def add_cell_usage(self, result: ExecutionResult) -> None:
        """Add the resources that a run in a cell used."""
        self.backend = result.backend
        self.cpu_ms += math.ceil(result.usage.cpu_ms)
        self.bytes += len(result.stdout_bytes) + len(result.stderr_bytes)
        self.bytes += result.usage.network_bytes
        self.usage |= {"cpu_ms": self.cpu_ms, "bytes": self.bytes}

    def add_reported_cost(self, cost: Mapping[str, int | str]) -> None:
        """Add a cost that the tool reports; its first report replaces the maximum."""
        for unit, amount in cost.items():
            before = self.usage[unit] if unit in self.reported else 0
            total = Decimal(before) + Decimal(amount)
            self.usage[unit] = f"{total:f}" if unit == "usd" else int(total)
        self.reported |= cost.keys()

    def pause(self, max_seconds: float) -> None:
        """Stop the clock of the deadline.

        Args:
            max_seconds: Seconds of pauses in the whole run. When it is reached the
                clock goes on.
        """
        self._pauses += 1
        if self._pauses == 1:
            self._pause_began = anyio.current_time()
            self._pause_left = max(max_seconds - self._paused, 0.0)
            self._extend(self._pause_left)

    def resume(self) -> None:
        """Start the clock again, once for each `pause`."""
        self._pauses -= 1
        if self._pauses == 0:
            took = min(anyio.current_time() - self._pause_began, self._pause_left)
            self._paused += took
            self._extend(took - self._pause_left)

    def _extend(self, seconds: float) -> None:
        self.extension += seconds
        if self.scope is not None:
            self.scope.deadline += seconds

    @property
    def still_running(self) -> bool:
        """True if a function could not be stopped, and runs on."""
        return self.job is not None and self.job.left_behind


current_call: ContextVar[CallState | None] = ContextVar("current_call", default=None)
"""The call whose tool runs the present code."""


@asynccontextmanager
async def pause_deadlines(max_seconds: float) -> AsyncIterator[None]:
    """Stop the clocks of the tools and programs around a call that waits for a person.

    Args:
        max_seconds: Seconds that each of these runs may gain in all.
    """
    paused = []
    state = current_call.get()
    while state is not None:
        state.pause(max_seconds)
        paused.append(state)
        state = state.outer
    try:
        async with pause_deadline():
            yield
    finally:
        for paused_call in paused:
            paused_call.resume()


def record_usage(result: ExecutionResult) -> None:
    """Add a run in a cell to the usage of the present call.

    Tools that run programs in cells themselves call this.
    """
    state = current_call.get()
    if state is not None:
        state.add_cell_usage(result)


FailureStatus = Literal["error", "denied", "timeout", "cancelled"]


class Attempt:
    """One attempt at a call, while it goes on and when it has ended."""

    tool: Tool | None = None
    version: str | None = None
    verdict: RecordedVerdict = "not_asked"
    replayed = False
    edited: Mapping[str, Any] | None = None
    """The arguments of the person who approved the call, if they differ."""

    retry = False
    """True if another attempt follows."""

    in_doubt = False
    """True if the tool may have had its effect, though nobody knows."""

    def __init__(self, call: ToolCall, started_at: datetime, number: int = 1) -> None:
        self.call = call
        self.started_at = started_at
        self.number = number
        self.began = time.perf_counter()
        self.state = CallState(call.agent_id or "")

    def next(self, started_at: datetime) -> Self:
        """Return another attempt at the call, in the same slots."""
        following = type(self)(self.call, started_at, self.number + 1)
        following.tool = self.tool
        following.state.held = self.state.held
        return following

    def failed(self, error: ToolcellError, status: FailureStatus) -> ToolResult:
        """Return the result of this attempt, which an error ended."""
        call = self.call
        result = ToolResult.failed(call.id, call.name, error, status=status)
        return result.model_copy(update={"usage": self.state.usage})

    def record(
        self,
        status: ToolStatus,
        content: JsonValue,
        error: BaseException | None,
        redactor: Redactor,
    ) -> ToolExecutionRecord:
        """Return the record of this attempt, now that it has ended."""
        call, tool = self.call, self.tool
        shown: Any = redactor(call.arguments if self.edited is None else self.edited)
        if self.verdict in NEVER_MADE:
            shown = bounded(shown)
        # By position, in the order of the fields: by name it takes twice as long.
        return ToolExecutionRecord(
            call.id,
            call.name if tool is None else tool.name,
            call.agent_id,
            call.parent_id,
            self.version if tool is None else tool.version,
            shown,
            self.verdict,
            status,
            self.started_at,
            (time.perf_counter() - self.began) * 1000,
            redactor(content),
            None if error is None else kind_of(error),
            None if error is None else self._reason(error),
            None if error is None else _traceback_text(error, redactor),
            dict(self.state.usage),
            self.state.backend,
            self.number,
            not self.retry,
            self.replayed,
            self.state.still_running,
            None if error is None else self._rule(error),
        )

    def _reason(self, error: BaseException) -> str | None:
        if self.verdict != "denied":
            return None
        reason = error.details.get("reason") if isinstance(error, ToolcellError) else ""
        return str(reason or kind_of(error))

    def _rule(self, error: BaseException) -> str | None:
        if self.verdict != "denied" or not isinstance(error, ToolcellError):
            return None
        rule = error.details.get("rule")
        return None if rule is None else str(rule)


def kind_of(error: BaseException) -> str:
    """Return the kind of an error, or the name of its type if it has none."""
    kind = getattr(error, "kind", None)
    return kind if isinstance(kind, str) else type(error).__name__


def _traceback_text(error: BaseException, redactor: Redactor) -> str:
    # A long text is cut at its end; the innermost frames and the message are there.
    return redactor.text("".join(traceback.format_exception(error, limit=-12)))


def bounded(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments, or as many as fit and the size and hash of all."""
    text = _json(arguments)
    if len(text) <= REFUSED_BYTES:
        return arguments
    kept: dict[str, Any] = {}
    room = REFUSED_BYTES
    for name, value in arguments.items():
        size = len(_json({name: value}))
        if size <= room:
            kept[name] = value
            room -= size
    digest = sha256(text.encode()).hexdigest()
    kept[LEFT_OUT] = f"the arguments have {len(text)} bytes, sha256 {digest}"
    return kept


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
