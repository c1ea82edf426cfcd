"""Charges for what the cell of a session uses while none of its programs runs."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import anyio

from toolcell.core import ToolCall, ToolcellError
from toolcell.guard import ActionGuard, CallFacts
from toolcell.sandbox import ExecutionResult, SandboxSession

from ..execution.attempt import current_call
from ..execution.operation import NO_COST


class Held(Protocol):
    """The part of a `CodeSession` that is charged for."""

    agent_id: str | None
    session: SandboxSession | None
    users: int


LOOK_SECONDS = 1.0
"""Seconds between two looks at what the cell of a session has used."""

_LAST_SECONDS = 5.0
_log = logging.getLogger("toolcell.tools")


class SessionCosts:
    """The use of one session, and how much of it was charged.

    A program of a session leaves processes and threads behind, which go on. What they
    use is charged each second, and at the end. While a program runs it is the call's.

    Args:
        guard: The guard; None charges nothing.
    """

    def __init__(self, guard: ActionGuard | None) -> None:
        self._guard = guard
        self._accounted_ms = 0.0
        self._was_charged = False

    async def begin(self, held: Held) -> None:
        """Begin to count in a new cell."""
        if self._guard is not None:
            self._accounted_ms = await _used_ms(held)

    async def charge(self, held: Held) -> bool:
        """Charge what was used since the last program; False: a budget is over."""
        if self._guard is None or held.users:
            return True
        call = ToolCall(id="usage", name="run_python", agent_id=held.agent_id)
        owed = 0
        with anyio.move_on_after(_LAST_SECONDS, shield=True):
            try:
                owed = int(await _used_ms(held) - self._accounted_ms)
                if owed < 1 or held.users:
                    return True
                self._accounted_ms += owed
                self._was_charged = True
                cost = {**NO_COST, "cpu_ms": owed}
                return await self._guard.charge(call, CallFacts(cost=NO_COST), cost)
            except ToolcellError as error:
                # It is charged at the next look.
                self._accounted_ms -= owed
                _log.warning("a session of %s is not charged: %s", held.agent_id, error)
        return True

    @asynccontextmanager
    async def of_call(self, held: Held) -> AsyncIterator[None]:
        """Charge a call that is cut off what its program has used, and that once."""
        try:
            yield
        except BaseException:
            with anyio.move_on_after(_LAST_SECONDS, shield=True):
                await self._charge_without_result(held)
            raise

    async def _charge_without_result(self, held: Held) -> None:
        state = current_call.get()
        if self._guard is None or state is None:
            return
        with suppress(ToolcellError):
            used = math.ceil(max(await _used_ms(held) - self._accounted_ms, 0.0))
            self._accounted_ms += used
            state.cpu_ms += used
            state.usage |= {"cpu_ms": state.cpu_ms}

    async def after(self, held: Held, result: ExecutionResult) -> None:
        """Count a program's own use; what was charged before is taken off its call."""
        if self._guard is None:
            return
        self._accounted_ms += result.usage.cpu_ms
        state = current_call.get()
        if self._was_charged and state is not None:
            twice = int(max(self._accounted_ms - await _used_ms(held), 0.0))
            self._accounted_ms -= twice
            self._was_charged = False
            state.cpu_ms = max(state.cpu_ms - twice, 0)
            state.usage |= {"cpu_ms": state.cpu_ms}


async def _used_ms(held: Held) -> float:
    assert held.session is not None
    return (await held.session.usage()).cpu_ms
