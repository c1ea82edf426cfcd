"""A record: one attempt at one call, or the refusal of one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

from pydantic import JsonValue

from toolcell.core import ToolStatus
from toolcell.sandbox import Status

RecordedVerdict = Literal["allowed", "denied", "unguarded", "not_asked"]
"""The guard's verdict: it admitted the call, it refused it, there is no guard, or the
call ended before the guard was asked."""

NEVER_MADE = ("denied", "not_asked")
"""The verdicts of calls that were never made."""

_PROGRAMS = ("run_python", "run_shell", "run_code")
_PROGRAM_STATUSES = get_args(Status)


class ToolExecutionRecord(NamedTuple):
    """One attempt at one call. Secrets in it are redacted."""

    call_id: str
    tool_name: str
    agent_id: str | None
    parent_id: str | None
    """The call inside which this one was made."""

    tool_version: str | None
    """Empty for an act that is no call of a tool; None where no tool was found."""

    arguments: Mapping[str, JsonValue]
    """The arguments as the model sent them, or as the person who approved the call
    changed them; without defaults."""

    verdict: RecordedVerdict
    status: ToolStatus
    started_at: datetime
    duration_ms: float
    """Milliseconds of this attempt, waiting for the guard included."""

    result: JsonValue = None
    error_kind: str | None = None
    """`ToolcellError.kind` of what ended it; None if the status is `ok`."""

    reason: str | None = None
    """The reason of the guard's refusal, as `Decision.reason`; None if it admitted."""

    error_detail: str | None = None
    """The error with its traceback, for people; a model never sees it."""

    usage: Mapping[str, int | str] = MappingProxyType({})
    """The amounts that were charged, by unit; `usd` is decimal text."""

    backend: str | None = None
    """The place of the run: `loop`, `thread`, `subprocess` or `docker`; None: it did
    not run."""

    attempt: int = 1
    """1 for the first try."""

    final: bool = True
    """True if the call ended with it, False if a retry follows."""

    replayed: bool = False
    """True if the result of an earlier call was returned and nothing ran."""

    still_running: bool = False
    """True if the function could not be stopped and ran on after the call."""

    rule: str | None = None
    """The rule or limit that refused, as `Decision.rule`; None if it was admitted."""

    @property
    def program_status(self) -> Status | None:
        """The status of the program that the call ran; None: it ran none.

        Other tools may answer with anything, and do not choose a status.
        """
        if self.tool_name not in _PROGRAMS or not isinstance(self.result, Mapping):
            return None
        status = self.result.get("status")
        # A status that is no text has no place in a set, but in a tuple.
        return status if status in _PROGRAM_STATUSES else None  # type: ignore[return-value]

    @property
    def outcome(self) -> ToolStatus | Status:
        """The status of the call, or of its program where only that one failed."""
        return (self.program_status if self.status == "ok" else None) or self.status

    @property
    def cost_usd(self) -> str | None:
        """The cost of the attempt in US dollars, as decimal text, if it is known."""
        cost = self.usage.get("usd")
        return None if cost is None else str(cost)


class NumberedRecord(NamedTuple):
    """A record and its place in its store."""

    number: int
    """Grows from record to record, from 1; there may be gaps."""

    record: ToolExecutionRecord
