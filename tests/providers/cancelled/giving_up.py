"""Gives up waiting for a script of a framework, and prints what its session keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from toolcell.providers.cells.guarded_session import GuardedSession
from toolcell.sandbox import Limits, SandboxConfig

CONFIG = SandboxConfig(backend="subprocess", limits=Limits(wall_seconds=600))
SCRIPT = "echo kept > note; touch up; exec sleep 600"
KEPT = "[x + 1, open('note').read()]"


async def give_up(
    name: str,
    guarded: GuardedSession,
    waiting: Awaitable[object],
    call: Callable[..., Awaitable[Any]],
) -> None:
    """Cancel a call that runs SCRIPT, and print how it ended and the value of KEPT.

    Args:
        name: The framework.
        guarded: The session of the script.
        waiting: The call.
        call: Calls a function on the session's event loop.
    """
    await call(guarded.run_python, "x = 41")
    running = asyncio.ensure_future(waiting)
    while "up" not in {each.path for each in await call(guarded.session.list_files)}:
        await asyncio.sleep(0.01)
    running.cancel()
    [ended] = await asyncio.gather(running, return_exceptions=True)
    while guarded.session.processes():
        await asyncio.sleep(0.01)
    kept = await call(guarded.run_python, KEPT)
    print(name, type(ended).__name__, kept.value)
