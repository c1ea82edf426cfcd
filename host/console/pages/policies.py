"""Policies and tools, with the definitions that were approved, and what is decided."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import anyio.to_thread
from starlette.responses import Response

from toolcell.core import ToolCall, ToolError
from toolcell.tools.spi import ExternalDefinition, MCPPins, OpenAPIPins

from ...config.tools import ToolsConfig
from ...operator.explanations import explain
from ..web.visit import ActionRefusedError, Visit, read_arguments


async def show(visit: Visit) -> Response:
    """Show the policies in force, the tools, and a form to ask about a call."""
    return visit.render("policies.html", asked=None, made=None, **await _facts(visit))


async def ask(visit: Visit) -> Response:
    """Show what would be decided about a call now; nothing is called or counted."""
    sources, form = visit.sources, visit.form
    asked = {name: form.get(name, "") for name in ("agent", "tool", "arguments", "run")}
    call = ToolCall(
        id="explain",
        name=asked["tool"],
        arguments=read_arguments(asked["arguments"].strip() or "{}"),
        agent_id=asked["agent"],
    )
    try:
        made = await explain(
            sources.guard,
            sources.registry,
            call,
            run_id=asked["run"] or None,
            seconds=sources.config.tools.timeout_seconds,
        )
    except ToolError as error:
        raise ActionRefusedError(409, error.message, hint=error.hint) from None
    return visit.render("policies.html", asked=asked, made=made, **await _facts(visit))


async def show_tool(visit: Visit) -> Response:
    """Show a tool as agents see it."""
    tool = visit.sources.registry.snapshot().get(visit.part("name"))
    if tool is None:
        raise ActionRefusedError(404, "there is no such tool")
    guard = visit.sources.guard
    return visit.render(
        "tool.html",
        tool=tool,
        arguments=argument_rows(tool.parameters),
        agents=[
            agent_id
            for agent_id in guard.agents
            if tool.name in visit.sources.registry.snapshot().for_agent(agent_id)
        ],
    )


class ArgumentRow(NamedTuple):
    """One argument of a tool, as a table has it."""

    name: str
    type: str
    required: bool
    default: str
    meaning: str


def argument_rows(schema: Mapping[str, Any]) -> list[ArgumentRow]:
    """Return the arguments of a tool; the schema may be anybody's."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, Mapping):
        return []
    needed = required if isinstance(required, list) else []
    rows = []
    for name, found in properties.items():
        each = found if isinstance(found, Mapping) else {}
        default = json.dumps(each["default"]) if "default" in each else ""
        meaning = str(each.get("description", ""))
        rows.append(ArgumentRow(name, _type(each), name in needed, default, meaning))
    return rows


def _type(schema: Mapping[str, Any]) -> str:
    """Return the type of a schema in a few words."""
    for several in ("anyOf", "oneOf"):
        options = schema.get(several)
        if isinstance(options, list):
            named = (_type(option) for option in options if isinstance(option, Mapping))
            return " or ".join(dict.fromkeys(named))
    if isinstance(schema.get("enum"), list):
        return "one of " + ", ".join(json.dumps(each) for each in schema["enum"])
    kind, items = schema.get("type", "any"), schema.get("items")
    if kind == "array" and isinstance(items, Mapping):
        return f"list of {_type(items)}"
    return " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind)


async def _facts(visit: Visit) -> dict[str, Any]:
    """Return what the page shows beside a decision."""
    sources = visit.sources
    pins = await anyio.to_thread.run_sync(_pins, sources.config.tools)
    return {
        "policies": [
            (
                policy.agent_id,
                json.loads(policy.model_dump_json(exclude_defaults=True)),
            )
            for policy in sources.guard.policies
        ],
        "version": sources.guard.policy_version,
        "tools": list(sources.registry.snapshot()),
        "pins": pins,
    }


def _pins(tools: ToolsConfig) -> dict[str, list[ExternalDefinition]]:
    """Return the approved definitions by their MCP server or API."""
    servers, apis = MCPPins.load(tools.mcp_pins), OpenAPIPins.load(tools.openapi_pins)
    return {
        **{name: _by_name(servers.of(name)) for name in tools.mcp},
        **{name: _by_name(apis.of(name)) for name in tools.openapi},
    }


def _by_name(found: Mapping[str, ExternalDefinition]) -> list[ExternalDefinition]:
    return [found[name] for name in sorted(found)]
