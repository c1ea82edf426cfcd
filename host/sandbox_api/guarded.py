"""Passes what clients do through the guard, as calls of their agents."""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal

import anyio

from toolcell.core import CellLostError, ToolCall, ToolcellError
from toolcell.guard import ActionGuard, CallFacts, Permit, Redactor
from toolcell.tools import Records

from ..desk.live_calls import LiveCall, LiveCalls
from ..sandbox_state.sandbox import Sandbox
from .call_records import NO_COST, AdmittedCall, NotedCall, without_values

Act = Literal[
    "create",
    "command",
    "code",
    "read",
    "write",
    "port",
    "pause",
    "network",
    "snapshot",
]
_HOLD_SECONDS = 3_600.0
_MAX_HOLD_SECONDS = 604_800.0
_log = logging.getLogger("toolcell.host")


class GuardedCalls:
    """The calls `sandbox.create`, `sandbox.command` and so on.

    Args:
        guard: Decides about them.
        approval_seconds: Seconds that a call waits for a person.
        records: Takes a record of each.
        redactor: Hides secrets in records.
        live_calls: Has each call while it waits or runs.
    """

    def __init__(
        self,
        guard: ActionGuard,
        approval_seconds: float,
        records: Records,
        redactor: Redactor,
        live_calls: LiveCalls,
    ) -> None:
        self._guard = guard
        self._approval_seconds = approval_seconds
        self._records = records
        self._redactor = redactor
        self._live_calls = live_calls

    @asynccontextmanager
    async def begun(
        self,
        act: Act,
        arguments: Mapping[str, Any],
        *,
        agent_id: str,
        run_id: str,
        seconds: float | None = None,
        cpus: float = 1.0,
    ) -> AsyncIterator[AdmittedCall]:
        """Admit a call; a body that settles nothing costs nothing, or its time.

        Args:
            act: The kind of call.
            arguments: What policies can look at.
            agent_id: The agent of the client's token.
            run_id: The run that it counts for.
            seconds: The longest time that it takes; it is reserved in budgets. None:
                it costs nothing that is counted.
            cpus: CPUs that it may use at a time.

        Raises:
            GuardDeniedError: It is refused.
            CallCancelledError: A person cancelled it while it waited.
        """
        call = ToolCall(
            id=uuid.uuid4().hex,
            name=f"sandbox.{act}",
            arguments=dict(arguments),
            agent_id=agent_id,
        )
        noted, facts = NotedCall(call), self._facts(run_id, seconds, cpus)
        live = self._live_calls.begin(without_values(call), run_id)
        try:
            async with AsyncExitStack() as stack:
                permit = await self._admitted(call, facts, live, stack)
                live.admit(without_values(permit.call), seconds)
                admitted = AdmittedCall(permit, None if seconds is None else cpus, live)
                noted.admitted = admitted
                try:
                    yield admitted
                    if live.cancelled_as is not None:
                        noted.take(live.cancelled_as)
                except BaseException as error:
                    noted.take(error)
                    with anyio.CancelScope(shield=True):
                        kind = noted.error_kind
                        await admitted.settle(status=noted.status, error_kind=kind)
                    raise
                await admitted.settle()
        except BaseException as error:
            noted.take(error)
            raise
        finally:
            self._add(noted)
            self._live_calls.end(live, noted.status)

    async def _admitted(
        self, call: ToolCall, facts: CallFacts, live: LiveCall, stack: AsyncExitStack
    ) -> Permit:
        """Return the permit of a call, entered; until then it can be cancelled."""

        @asynccontextmanager
        async def parked() -> AsyncIterator[None]:
            live.enter("parked")
            yield
            live.enter("running")

        live.enter("running")
        permit = self._guard.admit(call, facts, while_waiting=parked)
        with anyio.CancelScope() as scope:
            live.stop = scope.cancel
            await stack.enter_async_context(permit)
        live.stop = None
        if live.cancelled_as is not None:
            raise live.cancelled_as
        return permit

    def _facts(self, run_id: str, seconds: float | None, cpus: float) -> CallFacts:
        cost = NO_COST
        hold = _HOLD_SECONDS
        if seconds is not None:
            wall = math.ceil(seconds * 1000)
            cost = {"wall_ms": wall, "cpu_ms": math.ceil(wall * cpus)}
            hold = min(max(seconds + 60.0, _HOLD_SECONDS), _MAX_HOLD_SECONDS)
        return CallFacts(
            cost=cost,
            run_id=run_id,
            approval_seconds=self._approval_seconds,
            hold_seconds=hold,
        )

    def _add(self, noted: NotedCall) -> None:
        """Write the record of a call that has ended; its client has its answer."""
        noted.close_span()
        try:
            self._records.add(noted.record(self._redactor))
        except ToolcellError:
            _log.exception("the record of call %r is lost", noted.call.id)

    @asynccontextmanager
    async def of(
        self,
        sandbox: Sandbox,
        act: Act,
        arguments: Mapping[str, Any],
        *,
        seconds: float | None = None,
    ) -> AsyncIterator[AdmittedCall]:
        """Admit a call of a sandbox, as `begun`; one that finds its cell lost ends it.

        Raises:
            GuardDeniedError: It is refused.
        """
        session = sandbox.session
        try:
            async with self.begun(
                act,
                {"sandbox_id": sandbox.id, **arguments},
                agent_id=sandbox.agent_id,
                run_id=sandbox.id,
                seconds=seconds,
                cpus=session.limits.cpus,
            ) as admitted:
                yield admitted
        except CellLostError:
            # A command can be lost alone.
            if not session.alive:
                sandbox.end("lost")
            raise
