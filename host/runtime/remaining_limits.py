"""What limits leave each agent, over all tools that it sees."""

from __future__ import annotations

from collections.abc import Iterable

from toolcell.guard import ActionGuard, CallFacts
from toolcell.tools import ToolRegistry

RemainingLimits = dict[str, dict[str, int | str]]
"""By agent and limit; amounts of money are decimal text."""


async def limits_left(
    guard: ActionGuard,
    registry: ToolRegistry,
    agents: Iterable[str],
    run_id: str | None = None,
) -> RemainingLimits:
    """Return what is left now.

    Args:
        guard: Who knows.
        registry: The tools.
        agents: Whose limits.
        run_id: For limits by run; None: what a new run would have.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    left: RemainingLimits = {agent: {} for agent in agents}
    for agent, limits in left.items():
        for tool in registry.snapshot().for_agent(agent):
            facts = CallFacts(
                version=tool.version,
                tags=frozenset(tool.tags),
                run_id=run_id or "a new run",
                turn="a new turn",
            )
            limits.update(await guard.remaining(agent, tool.name, facts))
    return left
