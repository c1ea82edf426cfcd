"""The calls that run now, with their output, and the way to end one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import time
from typing import Any

import anyio
from pydantic import JsonValue

from toolcell.core import InvalidInputError, ToolTimeoutError
from toolcell.guard import Redactor
from toolcell.tools import CallCancelledError, Hook, Invocation, Proceed

from .output import OutputRing

Listener = Callable[[str, "LiveCall"], None]
"""Told of events: `call.started` and `call.ended`, and the call."""


@dataclass(slots=True, eq=False, kw_only=True)
class LiveCall:
    """One attempt at a call, from its admission to its end."""

    number: int
    """Its number in this process, from 1."""

    invocation: Invocation
    since: float
    """The time at which it began, in seconds since 1970 (UTC)."""

    scope: anyio.CancelScope
    output: OutputRing = field(default_factory=OutputRing)
    ended: anyio.Event = field(default_factory=anyio.Event)
    status: str = "running"
    """`running`; after its end `ok`, `error`, `timeout` or `cancelled`."""

    cancelled_by: str | None = None
    """The person who cancelled it."""

    @property
    def id(self) -> str:
        """The id of the call: its caller's choice, and unique to no one else."""
        return self.invocation.call.id

    @property
    def agent_id(self) -> str | None:
        """The agent that calls."""
        return self.invocation.call.agent_id

    @property
    def tool(self) -> str:
        """The name of the tool."""
        return self.invocation.tool.name

    @property
    def parent_id(self) -> str | None:
        """The call inside which it was made."""
        return self.invocation.call.parent_id

    @property
    def deadline(self) -> float:
        """The time at which it is stopped, unless it waits for a person meanwhile."""
        return self.since + self.invocation.seconds

    def arguments(self, redactor: Redactor) -> Mapping[str, Any]:
        """Return its arguments without secrets."""
        shown: Any = redactor(self.invocation.call.arguments)
        return shown  # type: ignore[no-any-return]


class LiveCalls(Hook):
    """The calls of a host that run now: those that agents make, and those inside them.

    A call is here once it was admitted. One that waits for a place or for a person is
    not, and neither is one of the sandbox API.

    Args:
        clock: Returns seconds since 1970 (UTC).
    """

    def __init__(self, *, clock: Callable[[], float] = time) -> None:
        self._clock = clock
        self._calls: dict[int, LiveCall] = {}
        self._last = 0
        self.listeners: list[Listener] = []
        """Told of each call that begins or ends."""

    async def around(self, invocation: Invocation, proceed: Proceed) -> JsonValue:
        """Note the call while it runs; `Hook.around`.

        Raises:
            CallCancelledError: A person cancelled it.
        """
        self._last += 1
        with anyio.CancelScope() as scope:
            call = LiveCall(
                number=self._last,
                invocation=invocation,
                since=self._clock(),
                scope=scope,
            )
            invocation.on_output.append(call.output.add)
            self._calls[call.number] = call
            self._tell("call.started", call)
            try:
                content = await proceed()
                call.status = "ok"
                return content
            except BaseException as error:
                call.status = _status(error)
                raise
            finally:
                del self._calls[call.number]
                call.ended.set()
                call.output.wake()
                self._tell("call.ended", call)
        raise CallCancelledError(
            "a person who runs this host ended the call",
            hint="look whether it took effect before you call it again",
        )

    def all(self, agent_id: str | None = None) -> list[LiveCall]:
        """Return the calls that run, the oldest first; None: those of all agents."""
        return [
            each
            for each in self._calls.values()
            if agent_id is None or each.agent_id == agent_id
        ]

    def find(self, number: int) -> LiveCall:
        """Return a call that runs.

        Raises:
            InvalidInputError: It does not run, or not any more.
        """
        call = self._calls.get(number)
        if call is None:
            raise InvalidInputError(
                f"no call runs under the number {number}",
                hint="it has ended; records have its result",
            )
        return call

    async def cancel(self, call: LiveCall, *, by: str) -> None:
        """Cancel a call, and wait until it has ended.

        Args:
            call: The call; one that has ended stays as it is.
            by: The name of the person.
        """
        if not call.ended.is_set():
            call.cancelled_by = by
            call.scope.cancel()
        await call.ended.wait()

    def _tell(self, event: str, call: LiveCall) -> None:
        for each in self.listeners:
            each(event, call)


def _status(error: BaseException) -> str:
    if isinstance(error, ToolTimeoutError):
        return "timeout"
    if isinstance(error, Exception) and not isinstance(error, CallCancelledError):
        return "error"
    return "cancelled"
