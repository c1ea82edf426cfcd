"""JSON Schema in the subset that OpenAI's strict mode accepts."""

from __future__ import annotations

import json
from typing import Any

from toolcell.core import ConfigError

# Keywords of OpenAI's strict mode; the rest is dropped or refused.
_STRICT_FORMATS = frozenset(
    "date-time time date duration email hostname ipv4 ipv6 uuid".split()
)
_STRICT_KEPT = frozenset(
    "type description enum const pattern multipleOf minimum maximum"
    " exclusiveMinimum exclusiveMaximum minItems maxItems".split()
)
# Only narrows what is valid; the tool's own validation still holds it.
_STRICT_DROPPED = frozenset(
    "title default examples minLength maxLength uniqueItems contentEncoding"
    " contentMediaType minProperties maxProperties deprecated readOnly format"
    " $schema $comment".split()
)
_OF_OBJECTS = ("required", "additionalProperties")


def strict_schema(where: str, schema: Any) -> dict[str, Any]:
    """Return a schema that the API can hold a model to.

    Args:
        where: Names the schema in messages.
        schema: Any JSON Schema; it stays as it is.

    Raises:
        ConfigError: Strict mode cannot express it.
    """
    if not isinstance(schema, dict) or set(schema) <= _STRICT_DROPPED | {"description"}:
        raise _inexpressible(where, "a value of any type")
    if "$ref" in schema:
        # Nothing may stand beside a reference there.
        return {"$ref": schema["$ref"]}
    made: dict[str, Any] = {}
    for key, value in schema.items():
        made.update(_keyword(where, key, value))
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            raise _inexpressible(where, "an open object")
        made["required"] = list(made.setdefault("properties", {}))
        made["additionalProperties"] = False
    if schema.get("type") == "array" and "items" not in schema:
        raise _inexpressible(where, "a list of any items")
    if "default" in schema:
        default = f"Default: {json.dumps(schema['default'], ensure_ascii=False)}."
        made["description"] = f"{schema.get('description', '')} {default}".strip()
    return made


def _keyword(where: str, key: str, value: Any) -> dict[str, Any]:
    if key in _STRICT_KEPT or (key == "format" and value in _STRICT_FORMATS):
        return {key: value}
    if key in ("anyOf", "oneOf"):
        return {"anyOf": [strict_schema(where, each) for each in value]}
    if key == "items":
        return {key: strict_schema(f"{where}[]", value)}
    if key in ("properties", "$defs"):
        inner = {name: strict_schema(f"{where}.{name}", value[name]) for name in value}
        return {key: inner}
    if key in _STRICT_DROPPED or key in _OF_OBJECTS:
        return {}
    raise _inexpressible(where, key)


def _inexpressible(where: str, what: str) -> ConfigError:
    return ConfigError(
        f"{where}: OpenAI's strict mode cannot express {what}",
        hint="export without strict, or narrow the annotation",
    )
