"""Passes what clients do through the guard, as calls of their agents."""

from __future__ import annotations

import math
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

from toolcell.core import ToolCall
from toolcell.guard import ActionGuard, CallFacts, Permit
from toolcell.sandbox import ExecutionResult

from .sandboxes import Sandbox

Act = Literal["create", "command", "code", "read", "write", "port", "pause", "network"]
_NO_COST: Mapping[str, int] = {"cpu_ms": 0, "wall_ms": 0, "bytes": 0}
_HOLD_SECONDS = 3_600.0
_MAX_HOLD_SECONDS = 604_800.0


class GuardedCalls:
    """The calls `sandbox.create`, `sandbox.command` and so on.

    Args:
        guard: Decides about them.
        approval_seconds: Seconds that a call waits for a person.
    """

    def __init__(self, guard: ActionGuard, approval_seconds: float) -> None:
        self._guard = guard
        self._approval_seconds = approval_seconds

    def admit(
        self,
        act: Act,
        arguments: Mapping[str, Any],
        *,
        agent_id: str,
        run_id: str,
        seconds: float | None = None,
        cpus: float = 1.0,
    ) -> Permit:
        """Return the permit of a call; entering it decides and reserves.

        Args:
            act: The kind of call.
            arguments: What policies can look at.
            agent_id: The agent of the client's token.
            run_id: The run that it counts for.
            seconds: The longest time that it takes; it is reserved in budgets. None:
                it costs nothing that is counted.
            cpus: CPUs that it may use at a time.
        """
        call = ToolCall(
            id=uuid.uuid4().hex,
            name=f"sandbox.{act}",
            arguments=dict(arguments),
            agent_id=agent_id,
        )
        cost = _NO_COST
        hold = _HOLD_SECONDS
        if seconds is not None:
            wall = math.ceil(seconds * 1000)
            cost = {"wall_ms": wall, "cpu_ms": math.ceil(wall * cpus)}
            hold = min(max(seconds + 60.0, _HOLD_SECONDS), _MAX_HOLD_SECONDS)
        facts = CallFacts(
            cost=cost,
            run_id=run_id,
            approval_seconds=self._approval_seconds,
            hold_seconds=hold,
        )
        return self._guard.admit(call, facts)

    @asynccontextmanager
    async def of(
        self,
        sandbox: Sandbox,
        act: Act,
        arguments: Mapping[str, Any],
        *,
        seconds: float | None = None,
    ) -> AsyncIterator[Permit]:
        """Admit a call of a sandbox; a body that settles nothing costs nothing.

        Raises:
            GuardDeniedError: It is refused.
        """
        permit = self.admit(
            act,
            {"sandbox_id": sandbox.id, **arguments},
            agent_id=sandbox.agent_id,
            run_id=sandbox.id,
            seconds=seconds,
            cpus=sandbox.session.limits.cpus,
        )
        async with permit:
            yield permit
            if seconds is None:
                await permit.settle(_NO_COST)


async def settle(permit: Permit, result: ExecutionResult) -> None:
    """Charge what a program used, and record how it ended."""
    usage = result.usage
    cost = {
        "cpu_ms": math.ceil(usage.cpu_ms),
        "wall_ms": math.ceil(usage.wall_ms),
        "bytes": usage.network_bytes,
    }
    await permit.settle(cost, status="ok", result=result.status)
