"""Tools in the shapes that model providers and MCP clients take.

Names keep to what every provider accepts (dots become `_`, except for MCP); the
registry finds a tool by that spelling too.
"""

from __future__ import annotations

import json
from typing import Any

from toolcell.core import ConfigError

from ..definition.options import ARGUMENT_NAME, provider_name
from ..definition.tool import Tool
from .openai_strict import strict_schema

_JOINS = ("allOf", "anyOf", "oneOf")


def to_openai(tool: Tool, *, strict: bool = False) -> dict[str, Any]:
    """Return an entry of `tools` of Chat Completions.

    Args:
        tool: The tool to show.
        strict: Whether the API itself holds the model to the schema. Every property
            becomes required then; its description names its default.

    Raises:
        ConfigError: Strict mode cannot express the schema: an open object, a value
            of any type, a tuple.
    """
    function: dict[str, Any] = {
        "name": provider_name(tool.name),
        "description": tool.description,
        "parameters": _with_examples(tool),
    }
    if strict:
        function["parameters"] = strict_schema(tool.name, tool.parameters)
        function["strict"] = True
    return {"type": "function", "function": function}


def to_anthropic(tool: Tool) -> dict[str, Any]:
    """Return an entry of `tools` of the Messages API.

    That API takes no `anyOf`, `oneOf` or `allOf` at the root of a schema: their
    properties are shown as properties of the root, and the tool's own validation still
    holds the rest.

    Raises:
        ConfigError: A property has a name that the API refuses, with the whole request.
    """
    return {
        "name": provider_name(tool.name),
        "description": tool.description,
        "input_schema": anthropic_schema(tool.name, _with_examples(tool)),
    }


def to_mcp(tool: Tool) -> dict[str, Any]:
    """Return an entry of the result of MCP's `tools/list`.

    A result that is no object is shown, and has to be sent, as `{"result": ...}`.
    """
    shown: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": _with_examples(tool),
        "annotations": {"idempotentHint": tool.idempotent},
    }
    if tool.returns is not None:
        shown["outputSchema"] = _as_object(tool.returns)
    return shown


def _as_object(schema: dict[str, Any]) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(schema))
    if copy.get("type") == "object":
        return copy
    definitions = {"$defs": copy.pop("$defs")} if "$defs" in copy else {}
    return {
        "type": "object",
        "properties": {"result": copy},
        "required": ["result"],
        **definitions,
    }


def _with_examples(tool: Tool) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(json.dumps(tool.parameters))
    examples = [dict(example) for example in tool.example_calls()]
    if examples:
        schema["examples"] = examples
    return schema


def anthropic_schema(tool: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of arguments without what that API refuses.

    Args:
        tool: The tool's name, for messages.
        schema: Its JSON Schema; it stays as it is.

    Raises:
        ConfigError: A property has a name that the API refuses.
    """
    made = {key: value for key, value in schema.items() if key not in _JOINS}
    made["properties"] = _joined(schema)
    for name in made["properties"]:
        if not ARGUMENT_NAME.fullmatch(name):
            raise ConfigError(
                f"{tool}: the Messages API takes no property of such a name",
                hint="names have 1 to 64 letters, digits, `_`, `.` and `-`; "
                "leave the tool out of the request",
            )
    return made


def _joined(root: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of a schema and of all that it joins at its root.

    Those of a schema stand over the ones that it joins, and of these later ones over
    earlier ones.
    """
    found: list[dict[str, Any]] = []
    waiting: list[Any] = [root]
    seen: set[int] = set()
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        found.append(schema.get("properties", {}))
        reference = schema.get("$ref")
        if isinstance(reference, str):
            name = reference.removeprefix("#/$defs/")
            waiting.append(root.get("$defs", {}).get(name))
        for key in _JOINS:
            waiting += schema.get(key, ())
    return {name: each for some in reversed(found) for name, each in some.items()}
