"""`toolcell tools`: lists tools, shows them as models see them, and their servers."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolcell.core.text.printable import escaped

from ...terminal.output import print_json, print_table
from ..base.options import DEFAULT_CONFIG, AsJson, ConfigPath, ToolName
from .login import login, logout
from .pin import pin

if TYPE_CHECKING:
    from toolcell.tools import Tool
    from toolcell.tools.spi import Snapshot

tools = typer.Typer(
    help="List, show and pin the tools of a host.", no_args_is_help=True
)
tools.command()(pin)
tools.command()(login)
tools.command()(logout)

AgentFilter = Annotated[
    str | None, typer.Option("--agent", help="Only tools that this agent may see.")
]


class Shape(StrEnum):
    """The reader that a schema is written for."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    MCP = "mcp"


@tools.command("list")
def list_(
    config: ConfigPath = DEFAULT_CONFIG,
    agent: AgentFilter = None,
    as_json: AsJson = False,
) -> None:
    """List tools: name, version, tags, first line of the description."""
    found = list(_snapshot(config, agent))
    if as_json:
        print_json([_facts(tool) for tool in found])
        return
    rows = [
        (tool.name, tool.version, ",".join(sorted(tool.tags)), _first_line(tool))
        for tool in found
    ]
    print_table(("tool", "version", "tags", "what it does"), rows)


@tools.command()
def show(
    name: ToolName,
    config: ConfigPath = DEFAULT_CONFIG,
    agent: AgentFilter = None,
    as_json: AsJson = False,
) -> None:
    """Show all about one tool."""
    facts = _facts(_snapshot(config, agent).get_or_raise(name))
    if as_json:
        print_json(facts)
    else:
        print_table(("", ""), facts.items())


@tools.command()
def schema(
    name: ToolName,
    config: ConfigPath = DEFAULT_CONFIG,
    shape: Annotated[
        Shape, typer.Option("--for", help="The reader of the schema.")
    ] = Shape.MCP,
    as_json: AsJson = False,
) -> None:
    """Print a tool's definition, as the reader of --for takes it."""
    from toolcell.tools import to_anthropic, to_mcp, to_openai

    tool = _snapshot(config, None).get_or_raise(name)
    exporters: dict[Shape, Any] = {
        Shape.OPENAI: to_openai,
        Shape.ANTHROPIC: to_anthropic,
        Shape.MCP: to_mcp,
    }
    shaped = exporters[shape](tool)
    if as_json:
        print_json(shaped)
    else:
        print(escaped(json.dumps(shaped, indent=2)))


@tools.command()
def logs(
    server: Annotated[str, typer.Argument(help="The MCP server.")],
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Show what a program of MCP wrote last on standard error."""
    from ...config.host_config import HostConfig
    from ...runtime.mcp_toolsets import last_words

    said = last_words(HostConfig.from_file(config), server)
    if as_json:
        print_json({"server": server, "said": said})
    else:
        print(escaped(said), end="")


def _snapshot(path: Path, agent: str | None) -> Snapshot:
    """Return the tools; nothing is opened and nothing runs."""
    from toolcell.guard import ActionGuard

    from ...config.host_config import HostConfig
    from ...runtime.assembly import list_registry
    from ...runtime.policy_names import check_agent

    config = HostConfig.from_file(path)
    policies = config.all_policies()
    if agent is not None:
        check_agent(policies, agent)
    guard = ActionGuard(policies)
    snapshot = list_registry(config, guard).snapshot()
    return snapshot if agent is None else snapshot.for_agent(agent)


def _facts(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "version": tool.version,
        "description": tool.description,
        "tags": sorted(tool.tags),
        "sandboxed": tool.sandboxed,
        "idempotent": tool.idempotent,
        "requires_approval": tool.requires_approval,
        "timeout": tool.timeout,
        "cost": dict(tool.cost),
        "source": tool.source,
        "definition_hash": tool.definition_hash,
        "parameters": tool.parameters,
    }


def _first_line(tool: Tool) -> str:
    return (tool.description.splitlines() or [""])[0]
