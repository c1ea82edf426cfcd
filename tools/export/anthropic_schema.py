"""JSON Schema as the Messages API of Anthropic accepts it."""

from __future__ import annotations

from typing import Any

from toolcell.core import ConfigError

from ..definition.options import ARGUMENT_NAME

_JOINS = ("allOf", "anyOf", "oneOf")


def anthropic_schema(tool: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of arguments without what that API refuses.

    Args:
        tool: The tool's name, for messages.
        schema: Its JSON Schema; it stays as it is.

    Raises:
        ConfigError: A property has a name that the API refuses.
    """
    made = {key: each for key, each in schema.items() if key not in _JOINS}
    made["properties"] = _joined(schema, schema)
    for name in made["properties"]:
        if not ARGUMENT_NAME.fullmatch(name):
            raise ConfigError(
                f"{tool}: the Messages API takes no property of such a name",
                hint="names have 1 to 64 letters, digits, `_`, `.` and `-`; "
                "leave the tool out of the request",
            )
    return made


def _joined(schema: Any, root: dict[str, Any], depth: int = 8) -> dict[str, Any]:
    """Return the properties of a schema and of all that it joins at its root."""
    if not isinstance(schema, dict) or not depth:
        return {}
    found: dict[str, Any] = {}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        target = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"))
        found |= _joined(target, root, depth - 1)
    for key in _JOINS:
        for each in schema.get(key, ()):
            found |= _joined(each, root, depth - 1)
    own: dict[str, Any] = schema.get("properties", {})
    return found | own
