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
    " $schema $comment discriminator".split()
)
_OF_OBJECTS = ("required", "additionalProperties")


def strict_schema(where: str, schema: Any, root: Any = None) -> dict[str, Any]:
    """Return a schema that the API can hold a model to.

    An object with properties that says nothing of others takes no others: that only
    narrows what a model may write.

    Args:
        where: Names the schema in messages.
        schema: Any JSON Schema; it stays as it is.
        root: The schema that references lead into; None: this one.

    Raises:
        ConfigError: Strict mode cannot express it.
    """
    root = schema if root is None else root
    if not isinstance(schema, dict) or set(schema) <= _STRICT_DROPPED | {"description"}:
        raise _inexpressible(where, "a value of any type")
    if "$ref" in schema:
        beside = {key: each for key, each in schema.items() if key != "$ref"}
        target = _target(root, schema["$ref"]) if beside else None
        if target is None:
            return {"$ref": schema["$ref"]}
        # Nothing may stand beside a reference there.
        schema = target | beside
    made: dict[str, Any] = {}
    for key, value in schema.items():
        made.update(_keyword(where, key, value, root))
    if schema.get("type") == "object":
        says_nothing = "additionalProperties" not in schema
        is_closed = schema.get("additionalProperties") is False
        has_fields = bool(made.get("properties")) or schema is root
        if not (is_closed or (says_nothing and has_fields)):
            raise _inexpressible(where, "an open object")
        made["required"] = list(made.setdefault("properties", {}))
        made["additionalProperties"] = False
    if schema.get("type") == "array" and "items" not in schema:
        raise _inexpressible(where, "a list of any items")
    if "default" in schema:
        default = f"Default: {json.dumps(schema['default'], ensure_ascii=False)}."
        made["description"] = f"{schema.get('description', '')} {default}".strip()
    return made


def _target(root: Any, reference: Any) -> dict[str, Any] | None:
    name = str(reference).removeprefix("#/$defs/")
    target = root.get("$defs", {}).get(name) if isinstance(root, dict) else None
    return target if isinstance(target, dict) else None


def _keyword(where: str, key: str, value: Any, root: Any) -> dict[str, Any]:
    if key in _STRICT_KEPT or (key == "format" and value in _STRICT_FORMATS):
        return {key: value}
    if key in ("anyOf", "oneOf"):
        return {"anyOf": [strict_schema(where, each, root) for each in value]}
    if key == "items":
        return {key: strict_schema(f"{where}[]", value, root)}
    if key in ("properties", "$defs"):
        inner = {
            name: strict_schema(f"{where}.{name}", value[name], root) for name in value
        }
        return {key: inner}
    if key in _STRICT_DROPPED or key in _OF_OBJECTS:
        return {}
    raise _inexpressible(where, key)


def _inexpressible(where: str, what: str) -> ConfigError:
    return ConfigError(
        f"{where}: OpenAI's strict mode cannot express {what}",
        hint="export without strict, or narrow the annotation",
    )
