"""Hooks around the run of a tool: one behaviour each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from pydantic import JsonValue

from toolcell.core import ToolCall, ToolError

from ..definition.tool import Tool
from ..definition.validation import Arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One attempt at a call that was found, validated and admitted."""

    call: ToolCall
    tool: Tool
    arguments: Arguments
    attempt: int = 1
    seconds: float = 0.0
    """Seconds after which the run is stopped; waiting for a person is not counted."""

    run_id: str | None = None
    session: str | None = None
    """The client's session, as `RunContext` says."""

    on_output: list[Callable[[str, bytes], None]] = field(default_factory=list)
    """Called with stream and bytes as output of the call's program arrives. A hook adds
    a function before it proceeds; tools that run no program report nothing."""


class CallCancelledError(ToolError):
    """Somebody beside the caller ended the call; a hook raises it.

    The status of the call is `cancelled`, and it is not tried again.
    """

    kind = "tool.cancelled"


Proceed = Callable[[], Awaitable[JsonValue]]
"""Runs the tool, or the next hook, and returns its content as JSON values."""


class Hook(ABC):
    """Wraps the run of a tool, inside the guard's admission.

    A hook may observe, change the content, answer in the tool's place, or raise. Its
    error ends this call and no other. The guard has judged the arguments, so they
    cannot be changed.
    """

    @abstractmethod
    async def around(self, invocation: Invocation, proceed: Proceed) -> JsonValue:
        """Return the content of the call; `await proceed()` returns the tool's own."""


def chained(
    hooks: Sequence[Hook], invocation: Invocation, innermost: Proceed
) -> Proceed:
    """Return the run of a tool with hooks around it, the first outermost."""
    proceed = innermost
    for hook in reversed(hooks):
        proceed = partial(hook.around, invocation, proceed)
    return proceed
