"""`toolcell budget`: what rates and budgets leave each agent."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...terminal.output import print_json, print_table
from ...terminal.signals import run_async
from ..base.options import DEFAULT_CONFIG, AsJson, ConfigPath, RunId

if TYPE_CHECKING:
    from ...operator.limits import RemainingLimits


def budget(
    agent: Annotated[
        str | None, typer.Option(help="One agent only; default all.")
    ] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    run: RunId = None,
    as_json: AsJson = False,
) -> None:
    """Show what rates and budgets leave each agent now.

    Limits of tools that an agent does not see are left out.
    """
    left = run_async(_limits, config, agent, run)
    if as_json:
        print_json(left)
        return
    rows = [
        (name, limit, amount)
        for name, limits in left.items()
        for limit, amount in limits.items()
    ]
    print_table(("agent", "limit", "left"), rows)


async def _limits(path: Path, agent: str | None, run_id: str | None) -> RemainingLimits:
    from ...config.host_config import HostConfig
    from ...operator.limits import limits_left
    from ...runtime.assembly import list_registry, open_guard
    from ...runtime.policy_names import check_agent

    config = HostConfig.from_file(path)
    policies = config.all_policies()
    agents = [policy.agent_id for policy in policies]
    if agent is not None:
        check_agent(policies, agent)
    wanted = [each for each in agents if agent in (None, each)]
    async with AsyncExitStack() as stack:
        guard = open_guard(config, os.environ, stack).guard
        return await limits_left(guard, list_registry(config, guard), wanted, run_id)
