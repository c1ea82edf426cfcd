"""Reads what rates and budgets leave each agent, over all tools that it sees."""

from __future__ import annotations

from collections.abc import Iterable

from toolcell.guard import ActionGuard, CallFacts
from toolcell.tools import ToolRegistry

RemainingLimits = dict[str, dict[str, int | str]]
"""Amounts by agent and limit; amounts of money are decimal text."""


async def limits_left(
    guard: ActionGuard,
    registry: ToolRegistry,
    agents: Iterable[str],
    run_id: str | None = None,
) -> RemainingLimits:
    """Return what limits leave now.

    Args:
        guard: The guard.
        registry: The tools.
        agents: The agents.
        run_id: A run, for limits by run; None: a new run.

    Raises:
        StoreUnavailableError: The guard's store did not respond.
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
