"""Charges agents for what runs in their sandboxes beside commands and code."""

from __future__ import annotations

import logging

import anyio

from toolcell.core import InvalidInputError, SandboxError, ToolCall, ToolcellError
from toolcell.guard import ActionGuard, CallFacts

from ..protocol.errors import APIError
from ..state.sandbox import Sandbox
from .commands import NOTHING

LOOK_SECONDS = 1.0
"""Seconds between two looks at what a sandbox has used."""

_LAST_SECONDS = 5.0
_log = logging.getLogger("toolcell.host")


async def meter(sandbox: Sandbox, guard: ActionGuard) -> None:
    """Charge what processes use that no command waits for, until a sandbox ends.

    While commands or code run, what is held for them covers the whole cell; what
    others have used meanwhile is charged after that. A sandbox whose agent has used a
    budget up ends.
    """
    try:
        while True:
            await anyio.sleep(LOOK_SECONDS)
            if not await _charge(sandbox, guard):
                _log.warning("sandbox %s ends: a budget is used up", sandbox.id)
                sandbox.end("budget")
    finally:
        # Commands end with their sandbox, and charge first.
        with anyio.move_on_after(_LAST_SECONDS, shield=True):
            for command in list(sandbox.commands.values()):
                await command.ended.wait()
        with anyio.move_on_after(_LAST_SECONDS, shield=True):
            await _charge(sandbox, guard)


async def _charge(sandbox: Sandbox, guard: ActionGuard) -> bool:
    if sandbox.is_busy or sandbox.opened is None or sandbox.state == "paused":
        return True
    try:
        used = (await sandbox.opened.usage()).cpu_ms
        owed = int(used - sandbox.accounted_ms)
        if owed < 1 or sandbox.is_busy:
            return True
        sandbox.accounted_ms += owed
        call = ToolCall(id="usage", name="sandbox.command", agent_id=sandbox.agent_id)
        facts = CallFacts(cost=NOTHING, run_id=sandbox.id)
        return await guard.charge(call, facts, {**NOTHING, "cpu_ms": owed})
    except (APIError, InvalidInputError, SandboxError):
        # Its cell is gone, or measures nothing.
        return True
    except ToolcellError:
        _log.exception("what sandbox %s used is not charged", sandbox.id)
        return True
