"""`toolcell tools pin`: shows the tools that servers offer, and approves them."""

from __future__ import annotations

import difflib
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolcell.core import ToolExecutionError
from toolcell.core.text.counted import counted
from toolcell.core.text.printable import escaped_line

from ...terminal.exit_codes import EXIT_REFUSED
from ...terminal.output import print_json, print_notice
from ...terminal.signals import run_async
from ..base.options import DEFAULT_CONFIG, AsJson, ConfigPath

if TYPE_CHECKING:
    from typing import TypeAlias

    from toolcell.tools import MCPToolset, OpenAPIToolset
    from toolcell.tools.spi import ExternalDefinition, PinChange

    from ...config.host_config import HostConfig

    Toolset: TypeAlias = MCPToolset | OpenAPIToolset


def pin(
    server: Annotated[
        list[str] | None, typer.Argument(help="MCP servers and APIs; default: all.")
    ] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    yes: Annotated[bool, typer.Option("--yes", help="Approve without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what has changed in tools of servers, and approve it.

    Without a terminal and without --yes nothing is approved, and the exit code is 3 if
    anything differs.
    """
    from ...config.host_config import HostConfig

    settings = HostConfig.from_file(config)
    _show_last_words()
    pins = _loaded_pins(settings)
    changed: set[Path] = set()
    reports: list[dict[str, Any]] = []
    failed: list[ToolExecutionError] = []
    for name in server or [*settings.tools.mcp, *settings.tools.openapi]:
        try:
            offered = run_async(_offered, settings, name)
        except ToolExecutionError as error:
            # The others can be approved without it.
            failed.append(error)
            continue
        file = _pin_file(settings, name)
        definitions = [*offered.definitions, *_unlisted(offered, pins[file])]
        changes = pins[file].changes(name, definitions)
        if changes:
            changed.add(file)
        pins[file] = pins[file].approve(name, definitions)
        reports.append(_report(offered, changes))
        if not as_json:
            print("\n".join(map(escaped_line, _describe(offered, changes))))
    differs = bool(changed)
    approved = differs and (yes or _confirmed(as_json=as_json))
    if approved:
        for file in sorted(changed):
            pins[file].save(file)
    if as_json and not (failed and not reports):
        print_json({"approved": approved, "servers": reports})
    for failure in failed[1:]:
        print_notice(failure.message, as_json=as_json)
    if failed:
        raise failed[0]
    raise typer.Exit(EXIT_REFUSED if differs and not approved else 0)


def _show_last_words() -> None:
    """Print the standard error of servers, which says why one does not start."""
    log = logging.getLogger("toolcell.tools.mcp_client")
    log.addHandler(logging.StreamHandler())
    log.setLevel(logging.INFO)


def _confirmed(*, as_json: bool) -> bool:
    if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return typer.confirm("Approve all of this?")


def _loaded_pins(settings: HostConfig) -> dict[Path, Any]:
    """Return the pins by their files."""
    from toolcell.tools.spi import MCPPins, OpenAPIPins

    return {
        settings.tools.openapi_pins: OpenAPIPins.load(settings.tools.openapi_pins),
        settings.tools.mcp_pins: MCPPins.load(settings.tools.mcp_pins),
    }


def _pin_file(settings: HostConfig, name: str) -> Path:
    tools = settings.tools
    return tools.openapi_pins if name in tools.openapi else tools.mcp_pins


async def _offered(settings: HostConfig, name: str) -> Toolset:
    """Return the tools that a server offers now; the server is stopped again."""
    from ...runtime.mcp_toolsets import offering_toolset
    from ...runtime.openapi_toolsets import offering_api

    if name in settings.tools.openapi:
        async with offering_api(settings, name) as api:
            return api
    async with offering_toolset(settings, name, os.environ) as toolset:
        return toolset


def _unlisted(offered: Toolset, pins: Any) -> list[ExternalDefinition]:
    """Return the approved definitions of kinds whose list could not be read."""
    from toolcell.tools import MCPToolset

    if not isinstance(offered, MCPToolset):
        return []
    approved = pins.offers_of(offered.name).values()
    return [change for change in approved if change.kind in offered.unlisted]


def _report(offered: Toolset, changes: list[PinChange]) -> dict[str, Any]:
    differences = [
        {
            "name": change.name,
            "before": change.before and change.before.to_json(),
            "after": change.after and change.after.to_json(),
        }
        for change in changes
    ]
    return {
        "server": offered.name,
        "unconfined": _is_unconfined(offered),
        "changes": differences,
        "unusable": offered.unusable,
        "omitted": offered.omitted,
    }


def _is_unconfined(offered: Toolset) -> bool:
    from toolcell.tools import MCPToolset

    return isinstance(offered, MCPToolset) and offered.unconfined


def _describe(offered: Toolset, changes: list[PinChange]) -> Iterator[str]:
    tools = counted(len(offered.tools), "tool")
    yield f"{offered.name}: {tools}, {len(changes)} not approved"
    if _is_unconfined(offered):
        yield f"! {offered.name} is not confined: it runs as your user"
    for change in changes:
        if change.before is None:
            yield f"+ {change.name} is new"
        elif change.after is None:
            yield f"- {change.name} is gone"
        else:
            yield f"~ {change.name} has changed"
        before, after = _lines(change.before), _lines(change.after)
        for line in difflib.unified_diff(before, after, lineterm="", n=2):
            if not line.startswith(("---", "+++")):
                yield f"    {line}"
    for name, reason in offered.unusable.items():
        yield f"! {name} cannot be used: {reason}"
    if offered.omitted:
        yield f"! {offered.omitted:,} more are left out: there are too many"


def _lines(definition: ExternalDefinition | None) -> list[str]:
    # JSON escapes hidden characters: who approves a definition sees all of it.
    if definition is None:
        return []
    return json.dumps(definition.to_json(), indent=2).splitlines()
