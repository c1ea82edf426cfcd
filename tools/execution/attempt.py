"""One attempt at a call, and the record of it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, Self

from pydantic import JsonValue

from toolcell.core import ToolCall, ToolcellError, ToolResult, ToolStatus
from toolcell.guard import Redactor

from ..definition.tool import Tool
from ..stores.records import NEVER_MADE, RecordedVerdict, ToolExecutionRecord
from .call_state import CallState
from .refused_arguments import bounded

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
    return redactor.text("".join(traceback.format_exception(error)))
