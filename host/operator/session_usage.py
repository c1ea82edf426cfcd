"""The usage of sessions of code, measured when somebody looks."""

from __future__ import annotations

import anyio

from toolcell.sandbox.spi import CellUsage
from toolcell.tools.spi import CodeSession, CodeSessions

MEASURE_SECONDS = 1.0
"""Seconds in which all sessions of a list are measured; default 1. When it is reached
the list is shown without the usage of those that have not answered."""

Measured = list[tuple[CodeSession, CellUsage | None]]
"""Sessions with what they use; None: it could not be measured in time."""


async def measured(
    sessions: CodeSessions,
    agent_id: str | None = None,
    *,
    seconds: float = MEASURE_SECONDS,
) -> Measured:
    """Return the open sessions, the oldest first, measured side by side.

    Args:
        sessions: The sessions of a host.
        agent_id: The agent whose sessions they are; None: those of all agents.
        seconds: Seconds after which it waits for no more answers.
    """
    found = [each for each in sessions.all() if agent_id in (None, each.agent_id)]
    usage: dict[int, CellUsage | None] = {}

    async def measure(session: CodeSession) -> None:
        usage[session.number] = await sessions.usage(session)

    with anyio.move_on_after(seconds):
        async with anyio.create_task_group() as tasks:
            for listed in found:
                tasks.start_soon(measure, listed)
    return [(each, usage.get(each.number)) for each in found]
