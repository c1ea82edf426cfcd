"""`toolcell tools pin`: shows the tools that MCP servers offer, and approves them."""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolcell.core.text.printable import escaped_line

from ..terminal.output import print_json
from ..terminal.signals import run_async
from .options import DEFAULT_CONFIG, AsJson, ConfigPath

if TYPE_CHECKING:
    from toolcell.tools import MCPChange, MCPDefinition, MCPToolset

    from ..config.host_config import HostConfig

_EXIT_REFUSED = 3


def pin(
    server: Annotated[
        list[str] | None, typer.Argument(help="MCP servers; default: all of them.")
    ] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    yes: Annotated[bool, typer.Option("--yes", help="Approve without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how tools of MCP servers differ from the approved ones, and approve them.

    Without a terminal and without --yes nothing is approved, and the exit code is 3 if
    anything differs.
    """
    from toolcell.tools import MCPPins

    from ..config.host_config import HostConfig

    settings = HostConfig.from_file(config)
    names = server or list(settings.tools.mcp)
    pins = MCPPins.load(settings.tools.mcp_pins)
    reports, differs = [], False
    for name in names:
        offered = run_async(_offered, settings, name)
        changes = pins.changes(name, offered.definitions)
        differs = differs or bool(changes)
        pins = pins.approve(name, offered.definitions)
        reports.append(_report(offered, changes))
        if not as_json:
            print("\n".join(map(escaped_line, _describe(offered, changes))))
    approved = differs and (yes or _confirmed(as_json=as_json))
    if approved:
        pins.save(settings.tools.mcp_pins)
    if as_json:
        print_json({"approved": approved, "servers": reports})
    raise typer.Exit(_EXIT_REFUSED if differs and not approved else 0)


def _confirmed(*, as_json: bool) -> bool:
    if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return typer.confirm("Approve all of this?")


async def _offered(settings: HostConfig, name: str) -> MCPToolset:
    """Return the tools that a server offers now; the server is stopped again."""
    from ..runtime.mcp_toolsets import offering_toolset

    async with offering_toolset(settings, name, os.environ) as toolset:
        return toolset


def _report(offered: MCPToolset, changes: list[MCPChange]) -> dict[str, Any]:
    differences = [
        {
            "name": each.name,
            "before": each.before and each.before.to_json(),
            "after": each.after and each.after.to_json(),
        }
        for each in changes
    ]
    return {
        "server": offered.name,
        "changes": differences,
        "unusable": offered.unusable,
    }


def _describe(offered: MCPToolset, changes: list[MCPChange]) -> Iterator[str]:
    yield f"{offered.name}: {len(offered.tools)} tools, {len(changes)} not approved"
    for each in changes:
        if each.before is None:
            yield f"+ {each.name} is new"
        elif each.after is None:
            yield f"- {each.name} is gone"
        else:
            yield f"~ {each.name} has changed"
        before, after = _lines(each.before), _lines(each.after)
        for line in difflib.unified_diff(before, after, lineterm="", n=2):
            if not line.startswith(("---", "+++")):
                yield f"    {line}"
    for name, reason in offered.unusable.items():
        yield f"! {name} cannot be used: {reason}"


def _lines(definition: MCPDefinition | None) -> list[str]:
    # JSON escapes hidden characters: who approves a definition sees all of it.
    if definition is None:
        return []
    return json.dumps(definition.to_json(), indent=2).splitlines()
