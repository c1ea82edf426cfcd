"""The context of a running tool: facts of its call, and ways to report."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Protocol

from toolcell.core import (
    ConfigError,
    InvalidInputError,
    Message,
    Part,
    TextPart,
    ToolExecutionError,
    ToolTimeoutError,
)
from toolcell.sandbox.spi import RequestGate

from .questions import AskUser

MAX_PARTS = 32
"""Parts that one call shows to the model. When it is reached no more are taken."""

MAX_PART_CHARACTERS = 8_388_608
"""Characters of all parts of one call, pictures in base 64. When it would be exceeded a
part is not taken."""

_DECIMAL = re.compile(r"[0-9]{1,10}(\.[0-9]{1,18})?")
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def _nothing() -> Mapping[str, Any]:
    return _NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A report on how far a call has come."""

    call_id: str
    progress: float
    """Grows from report to report; the unit is the tool's own."""

    total: float | None = None
    """The progress at the end, if that is known."""

    message: str | None = None


class ArtifactSink(Protocol):
    """A store for data that a tool makes besides its result."""

    def save(self, name: str, data: bytes, media_type: str) -> str:
        """Store the data, and return a reference to it.

        The name may come from an untrusted program: never use it as a path.
        """
        ...


def _local_time() -> datetime:
    return datetime.now().astimezone()


@dataclass(slots=True, kw_only=True, eq=False)
class ToolContext:
    """One call, as the tool sees it. Declare a parameter of this type to get it.

    The executor makes it; a tool reads it. Its methods may be called from a worker
    thread.
    """

    call_id: str
    tool_name: str
    agent_id: str | None = None
    """The agent that made the call; None if it has no name."""

    parent_id: str | None = None
    """The call inside which this one was made."""

    run_id: str | None = None
    """The agent's run, as the guard counts it."""

    turn: str | None = None
    """The model's turn within the run."""

    session: str | None = None
    """The client's session, as `RunContext` says."""

    approval_seconds: float | None = None
    """Seconds for which a call may wait for a person, as in `RunContext`."""

    idempotency_key: str = ""
    """The same for every attempt of one call: hand it to services that take one."""

    attempt: int = 1
    deadline: float | None = None
    """The time of `time.monotonic()` at which the call is stopped; None: never."""

    messages: tuple[Message, ...] = ()
    """The conversation so far; empty where the host does not share it."""

    confidence: float = 0.0
    """The agent's confidence in its plan, from 0 to 1, where the host knows it."""

    metadata: Mapping[str, Any] = field(default_factory=_nothing)
    """The host's facts about this call."""

    config: Mapping[str, Any] = field(default_factory=_nothing)
    """The registry's configuration of this tool."""

    clock: Callable[[], datetime] = _local_time
    on_progress: Callable[[Progress], None] | None = None
    on_cost: Callable[[Mapping[str, int | str]], None] | None = None
    artifacts: ArtifactSink | None = None
    parts: list[Part] | None = None
    """All that `show` was given; None where nobody sees it."""

    on_output: Sequence[Callable[[str, bytes], None]] = ()
    """Called with output of a program that the tool runs."""

    gate: RequestGate | None = None
    """Judges what a program that the tool runs sends to a guarded network; it is for
    `Sandbox.run(gate=...)`."""

    ask_user: AskUser | None = None
    """Asks the user at the client of the call, for an MCP server, if the guard allows
    it."""

    _cancelled: bool = field(default=False, init=False)
    _progress: float = field(default=float("-inf"), init=False)

    def get_metadata(self, key: str, default: Any = None) -> Any:
        """Return one of the host's facts about this call."""
        return self.metadata.get(key, default)

    def get_config(self, key: str, default: Any = None) -> Any:
        """Return the registry's configuration of this tool under a key."""
        return self.config.get(key, default)

    def now(self) -> datetime:
        """Return the time, with its zone.

        Raises:
            ConfigError: The clock that the host gave has no time zone.
        """
        now = self.clock()
        if now.tzinfo is None:
            raise ConfigError(
                "the clock of the context returns a time without a zone",
                hint="use datetime.now(UTC)",
            )
        return now

    def remaining(self) -> float | None:
        """Return the seconds until the deadline, never below 0; None: no deadline."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """True once the call was cancelled. Functions in threads should look at it."""
        return self._cancelled

    def cancel(self) -> None:
        """Mark the call as cancelled, for the tool to see."""
        self._cancelled = True

    def check_cancelled(self) -> None:
        """Stop here if no caller waits for the result any more.

        Raises:
            ToolExecutionError: The call was cancelled.
            ToolTimeoutError: The deadline is over.
        """
        if self._cancelled:
            raise ToolExecutionError(
                "the call was cancelled",
                hint="if its result is still wanted, call it again",
            )
        if self.remaining() == 0:
            raise ToolTimeoutError(
                "the deadline of the call is over",
                hint="ask for less in one call, or give the tool more seconds",
            )

    def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Report to the caller how far the call has come.

        Args:
            progress: More than was reported before; any unit.
            total: The progress at the end, if that is known.
            message: A short text for people.

        Raises:
            InvalidInputError: The progress does not grow.
        """
        if not progress > self._progress:
            raise InvalidInputError(
                "progress has to grow from report to report",
                hint="report a higher number each time",
            )
        self._progress = progress
        if self.on_progress is not None:
            report = Progress(
                call_id=self.call_id, progress=progress, total=total, message=message
            )
            self.on_progress(report)

    def report_output(self, stream: str, data: bytes) -> None:
        """Hand on output of a program that the tool runs, as it arrives.

        Args:
            stream: `stdout` or `stderr`.
            data: The bytes, untrusted and as they are.
        """
        for listener in self.on_output:
            listener(stream, data)

    def report_cost(
        self, *, usd: str | Decimal | None = None, tokens: int | None = None
    ) -> None:
        """Report the real cost of the call; further reports add up.

        The guard charges it in place of the declared maximum, even if it is higher. A
        unit that no report names costs the declared maximum.

        Args:
            usd: US dollars, exactly: `"0.0012"`.
            tokens: Tokens of a model that the tool used.

        Raises:
            InvalidInputError: An amount is negative, not finite, or not exact.
        """
        cost: dict[str, int | str] = {}
        if usd is not None:
            cost["usd"] = _money(usd)
        if tokens is not None:
            if type(tokens) is not int or tokens < 0:
                raise InvalidInputError(
                    "tokens are a whole number from 0", hint="give an int of 0 or more"
                )
            cost["tokens"] = tokens
        if self.on_cost is not None:
            self.on_cost(cost)

    def show(self, part: Part) -> bool:
        """Show the model a picture or a text besides the result of the call.

        Returns:
            False if nobody sees it, or if the call has shown its `MAX_PARTS` parts, or
            `MAX_PART_CHARACTERS` in them.
        """
        if self.parts is None or len(self.parts) >= MAX_PARTS:
            return False
        size = sum(len(_content(each)) for each in (*self.parts, part))
        if size > MAX_PART_CHARACTERS:
            return False
        self.parts.append(part)
        return True

    def save_artifact(
        self, name: str, data: bytes, media_type: str = "application/octet-stream"
    ) -> str:
        """Store data that is too large for a result, or not text.

        Returns:
            A reference to it.

        Raises:
            ConfigError: The host has no store for artifacts.
        """
        if self.artifacts is None:
            raise ConfigError(
                "there is no place for artifacts",
                hint="give the executor an artifact sink",
            )
        return self.artifacts.save(name, data, media_type)


def _content(part: Part) -> str:
    return part.text if isinstance(part, TextPart) else part.data


def _money(usd: str | Decimal) -> str:
    text = f"{usd:f}" if isinstance(usd, Decimal) else usd
    if not isinstance(text, str) or not _DECIMAL.fullmatch(text):
        raise InvalidInputError(
            f"usd cannot be {usd!r}", hint='write a decimal as text, such as "0.25"'
        )
    return text
