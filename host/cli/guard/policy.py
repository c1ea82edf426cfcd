"""`toolcell policy`: checks policies, and explains what they decide about a call."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolcell.core.text.counted import counted

from ...terminal.output import print_json, print_table
from ...terminal.signals import run_async
from ..base.options import (
    DEFAULT_CONFIG,
    Agent,
    ArgumentsOption,
    AsJson,
    ConfigPath,
    RunId,
    ToolName,
)
from ..tools.call import read_call

if TYPE_CHECKING:
    from toolcell.core import ToolCall
    from toolcell.guard import ActionGuard, AgentPolicy, Decision

    from ...config.host_config import HostConfig

policy = typer.Typer(
    help="Check policies, and explain decisions.", no_args_is_help=True
)


@policy.command()
def check(
    file: Annotated[
        Path | None,
        typer.Argument(
            readable=False, help="A policy file; default: all of the configuration."
        ),
    ] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    offline: Annotated[
        bool, typer.Option(help="Do not look up tools, modules and secrets.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check policies, and list each problem with its place.

    Exits with 2 if there is one. Rules that are valid, and easily stepped around, are
    remarked upon. Of a configuration, names of tools, modules and
    secrets are looked up as well.
    """
    from toolcell.guard import ActionGuard, load_policies
    from toolcell.guard.spi import policy_remarks

    from ...config.host_config import HostConfig

    if file is not None:
        policies = load_policies(file)
        version = ActionGuard(policies).policy_version
    else:
        settings = HostConfig.from_file(config)
        policies = settings.all_policies()
        guard = ActionGuard(policies)
        version = guard.policy_version
        if not offline:
            _look_up(settings, policies, guard)
    agents = [each.agent_id for each in policies]
    if as_json:
        remarks = policy_remarks(policies)
        facts = {"policy_version": version, "agents": agents, "remarks": remarks}
        print_json({"ok": True, **facts})
    else:
        print(f"ok: {counted(len(agents), 'policy', 'policies')}, version {version}")


def _look_up(
    settings: HostConfig, policies: list[AgentPolicy], guard: ActionGuard
) -> None:
    from toolcell.sandbox.spi import NETWORK_ACTS
    from toolcell.tools.spi import MCP_ACTS

    from ...runtime.assembly import list_registry, read_secrets
    from ...runtime.policy_names import check_names

    read_secrets(settings, os.environ)
    tools = list_registry(settings, guard).list_tools()
    check_names(policies, [*tools, *NETWORK_ACTS, *MCP_ACTS])


@policy.command()
def explain(
    name: ToolName,
    agent: Agent,
    arguments: ArgumentsOption = "{}",
    config: ConfigPath = DEFAULT_CONFIG,
    run: RunId = None,
    as_json: AsJson = False,
) -> None:
    """Explain what would be decided about a call now. Nothing is called or counted."""
    tool_call = read_call(name, agent, arguments)
    decision = run_async(_explain, config, tool_call, run)
    if as_json:
        print_json(decision.to_json())
    else:
        facts = decision.to_json()
        tried = facts.pop("tried", [])
        rows = [*facts.items()]
        rows += [
            (
                f"tried {each['rule']}",
                " ".join(filter(None, ("met" if each["met"] else "", each["detail"]))),
            )
            for each in tried
        ]
        print_table(("", ""), rows)
    raise typer.Exit(0 if decision.allowed else 3)


async def _explain(path: Path, tool_call: ToolCall, run_id: str | None) -> Decision:
    from ...config.host_config import HostConfig
    from ...operator.explanations import explain
    from ...runtime.assembly import list_registry, open_guard
    from ...runtime.policy_names import check_agent

    config = HostConfig.from_file(path)
    check_agent(config.all_policies(), tool_call.agent_id or "")
    async with AsyncExitStack() as stack:
        guard = open_guard(config, os.environ, stack).guard
        return await explain(
            guard,
            list_registry(config, guard),
            tool_call,
            run_id=run_id,
            seconds=config.tools.timeout_seconds,
        )
