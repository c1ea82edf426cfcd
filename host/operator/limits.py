"""The limits of agents over all tools that they see."""

from __future__ import annotations

from collections.abc import Iterable

from toolcell.guard import ActionGuard, CallFacts
from toolcell.guard.spi import LimitState
from toolcell.tools import ToolRegistry

RemainingLimits = dict[str, dict[str, int | str]]
"""Amounts by agent and limit; amounts of money are decimal text."""


async def agent_limits(
    guard: ActionGuard,
    registry: ToolRegistry,
    agent_id: str,
    run_id: str | None = None,
) -> list[LimitState]:
    """Return the limits of an agent as they are now, each once.

    Args:
        guard: The guard.
        registry: The tools.
        agent_id: The agent.
        run_id: A run, for limits by run; None: a new run.

    Raises:
        StoreUnavailableError: The guard's store did not respond.
    """
    found: dict[str, LimitState] = {}
    for tool in registry.snapshot().for_agent(agent_id):
        facts = CallFacts(
            version=tool.version,
            tags=frozenset(tool.tags),
            run_id=run_id or "a new run",
            turn="a new turn",
        )
        states = await guard.limits(agent_id, tool.name, facts)
        found |= {state.label: state for state in states}
    return list(found.values())


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
        left[agent] = {state.label: state.left for state in states}
    return left
