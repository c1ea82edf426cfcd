"""The calls of clients: they run whether their client waits or not."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import time
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from toolcell.core import (
    StoreUnavailableError,
    ToolcellError,
    ToolExecutionError,
    ToolResult,
)
from toolcell.guard import called_by
from toolcell.tools import RunContext

from ..http.agent_shares import AgentShares, TooManyError
from ..http.serving import OpenRequests
from ..http.tokens import Token
from ..operator.live_calls import CallState as State
from ..operator.live_calls import LiveCalls
from ..runtime.active_calls import BusyError
from ..runtime.host import Host
from .bodies import CallState, NewCall
from .errors import RETRY_SECONDS, RequestRefusedError

_log = logging.getLogger("toolcell.host")

MAX_ENDED = 100
"""Ended calls of one agent whose results are kept. When it is reached the oldest one
is dropped; its record stays."""


MAX_SHOWN = 4
"""Ended calls of one agent whose pictures are kept. When it is reached the oldest one
loses them."""


def run_of(token: Token) -> str:
    """Return the run, and session, of all calls with one token."""
    return f"token-{token.id}"


@dataclass(slots=True, eq=False, kw_only=True)
class ClientCall:
    """One call of a client."""

    id: str
    agent_id: str
    run_id: str
    caller: str
    tool: str
    arguments: dict[str, Any]
    started_at: float
    ended_at: float | None = None
    result: ToolResult | None = None
    scope: anyio.CancelScope | None = None
    is_cancelled: bool = False
    ended: anyio.Event = field(default_factory=anyio.Event)

    def view(self, live: LiveCalls) -> CallState:
        """Return the call as it is now; `live` knows of those that live."""
        return CallState(
            id=self.id,
            tool=self.tool,
            arguments=self.arguments,
            state=self._state(live),
            started_at=self.started_at,
            ended_at=self.ended_at,
            result=self.result,
        )

    def _state(self, live: LiveCalls) -> State:
        if self.result is not None:
            return "ended"
        mine = (self.agent_id, self.run_id, self.id, None)
        for call in live.all(self.agent_id):
            if (call.agent_id, call.run_id, call.id, call.parent_id) == mine:
                return call.state
        return "queued"


def _may_go_on(is_valid: Callable[[str], bool], token_id: str) -> bool:
    """Return False for a call of a token that has ended; a failed look ends no call."""
    try:
        return is_valid(token_id)
    except StoreUnavailableError:
        return True


class ClientCalls:
    """The calls that run, and the latest that ended.

    Args:
        host: The host; open.
        tasks: Runs the calls.
        is_valid: Returns False for a token, by its id, that has ended. Its calls end,
            above all those that still wait for their turn or for a person.
        clock: Returns seconds since 1970 (UTC).
    """

    def __init__(
        self,
        host: Host,
        tasks: TaskGroup,
        is_valid: Callable[[str], bool],
        *,
        clock: Callable[[], float] = time,
    ) -> None:
        settings = host.config.server
        self._host = host
        self._tasks = tasks
        self._clock = clock
        self._shares = AgentShares(
            settings.max_requests, settings.max_bytes_per_second, anyio.current_time
        )
        self._open = OpenRequests(partial(_may_go_on, is_valid))
        self._by_agent: dict[str, dict[str, ClientCall]] = {}

    async def start(self, token: Token, asked: NewCall) -> ClientCall:
        """Start a call; return it, or the one that was started like this before.

        Raises:
            RequestRefusedError: Another call has this id, or the agent has too many.
            BusyError: The server runs as many calls as it may, or stops.
        """
        calls = self._by_agent.setdefault(token.agent_id, {})
        known = calls.get(asked.id or "")
        if known is not None:
            if (known.tool, known.arguments) != (asked.tool, asked.arguments):
                raise RequestRefusedError(
                    409,
                    "id_is_used",
                    "another call has this id",
                    hint="leave the id out, or choose a new one",
                )
            return known
        call = ClientCall(
            id=asked.id or uuid.uuid4().hex,
            agent_id=token.agent_id,
            run_id=run_of(token),
            caller=f"token {token.id}",
            tool=asked.tool,
            arguments=asked.arguments,
            started_at=self._clock(),
        )
        calls[call.id] = call
        try:
            await self._tasks.start(self._run, call, token.id)
        except (RequestRefusedError, BusyError):
            del calls[call.id]
            call.ended.set()
            raise
        return call

    def find(self, agent_id: str, call_id: str) -> ClientCall:
        """Return a call of an agent.

        Raises:
            RequestRefusedError: 404: it has none with this id, or not any more.
        """
        call = self._by_agent.get(agent_id, {}).get(call_id)
        if call is None:
            raise RequestRefusedError(
                404,
                "not_found",
                "the agent has no call with this id",
                hint="results are kept for a while; records have older calls",
            )
        return call

    async def cancel(self, call: ClientCall) -> None:
        """Cancel a call and wait for its end; an ended one stays as it is."""
        call.is_cancelled = True
        if call.scope is not None:
            call.scope.cancel()
        await call.ended.wait()

    async def _run(
        self, call: ClientCall, token_id: str, *, task_status: TaskStatus[None]
    ) -> None:
        try:
            with (
                self._shares.request(call.agent_id),
                self._open.request({}) as belongs_to,
                self._host.active_calls.enter() as scope,
            ):
                belongs_to(token_id)
                call.scope = scope
                if call.is_cancelled:
                    scope.cancel()
                task_status.started()
                try:
                    await self._make(call)
                finally:
                    call.scope = None
                    self._end(call)
        except TooManyError as error:
            raise RequestRefusedError(
                503,
                "too_many_calls",
                str(error),
                hint="wait for the end of other calls",
                retry_after=RETRY_SECONDS,
            ) from None

    async def _make(self, call: ClientCall) -> None:
        try:
            with called_by(call.caller):
                call.result = await self._host.call(
                    call.tool,
                    call.arguments,
                    agent_id=call.agent_id,
                    call_id=call.id,
                    run=RunContext(run_id=call.run_id, session=call.run_id),
                )
        except ToolcellError as error:
            call.result = ToolResult.failed(call.id, call.tool, error)
        except Exception as error:  # noqa: BLE001 - one call must not end the others
            _log.error("a call failed", exc_info=error)
            failure = ToolExecutionError(
                "the server failed", hint="its log says why; tell its operator"
            )
            call.result = ToolResult.failed(call.id, call.tool, failure)

    def _end(self, call: ClientCall) -> None:
        if call.result is None:
            call.result = ToolResult.failed(
                call.id,
                call.tool,
                ToolExecutionError(
                    "the call was cancelled; whether it took effect is not known",
                    hint="look whether it did before you call again",
                    details={"outcome": "unknown"},
                ),
                status="cancelled",
            )
        call.ended_at = self._clock()
        call.ended.set()
        calls = self._by_agent[call.agent_id]
        ended = [each for each in calls.values() if each.result is not None]
        for old in ended[:-MAX_ENDED]:
            del calls[old.id]
        shown = [each for each in ended if each.result and each.result.parts]
        for old in shown[:-MAX_SHOWN]:
            old.result = old.result and old.result.model_copy(update={"parts": ()})
