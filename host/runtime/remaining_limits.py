"""Reads what rates and budgets leave each agent, over all tools that it sees."""

from __future__ import annotations

from collections.abc import Iterable

from toolcell.guard import ActionGuard
from toolcell.tools import ToolRegistry

from ..desk.limits import agent_limits

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
    left: RemainingLimits = {}
    for agent in agents:
        states = await agent_limits(guard, registry, agent, run_id)
        left[agent] = {each.label: each.left for each in states}
    return left
