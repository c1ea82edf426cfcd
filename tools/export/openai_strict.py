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

MAX_WRITTEN_OUT = 500_000
"""Characters of the definitions of one schema that are written out, each as often as a
reference to it is reached. When it is exceeded the schema is refused."""


def strict_schema(where: str, schema: Any) -> dict[str, Any]:
    """Return a schema that the API can hold a model to.

    An object with properties that says nothing of others takes no others: that only
    narrows what a model may write.

    Args:
        where: Names the schema in messages.
        schema: Any JSON Schema; it stays as it is.

    Raises:
        ConfigError: Strict mode cannot express it.
    """
    try:
        return _Strict(schema).schema(where, schema)
    except RecursionError:
        raise _inexpressible(where, "so many levels") from None


class _Strict:
    """Writes the parts of one schema.

    Args:
        root: The schema that references lead into.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._open: list[str] = []
        self._left = MAX_WRITTEN_OUT

    def schema(self, where: str, schema: Any) -> dict[str, Any]:
        dropped = _STRICT_DROPPED | {"description"}
        if not isinstance(schema, dict) or set(schema) <= dropped:
            raise _inexpressible(where, "a value of any type")
        if "$ref" in schema:
            return self._reference(where, schema)
        made: dict[str, Any] = {}
        for key, value in schema.items():
            made.update(self._keyword(where, key, value))
        if schema.get("type") == "object":
            says_nothing = "additionalProperties" not in schema
            is_closed = schema.get("additionalProperties") is False
            has_fields = bool(made.get("properties")) or schema is self._root
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

    def _reference(self, where: str, schema: dict[str, Any]) -> dict[str, Any]:
        name = schema["$ref"]
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        target = self._target(name) if beside else None
        if target is None:
            return {"$ref": name}
        # Nothing may stand beside a reference there: it is written out.
        self._left -= len(json.dumps(target))
        if name in self._open or self._left < 0:
            what = "a reference with words beside it that leads to itself"
            much = f"over {MAX_WRITTEN_OUT:,} characters of definitions written out"
            raise _inexpressible(where, what if self._left >= 0 else much)
        self._open.append(name)
        made = self.schema(where, target | beside)
        self._open.pop()
        return made

    def _target(self, reference: Any) -> dict[str, Any] | None:
        name = str(reference).removeprefix("#/$defs/")
        known = self._root.get("$defs", {}) if isinstance(self._root, dict) else {}
        target = known.get(name)
        return target if isinstance(target, dict) else None

    def _keyword(self, where: str, key: str, value: Any) -> dict[str, Any]:
        if key in _STRICT_KEPT or (key == "format" and value in _STRICT_FORMATS):
            return {key: value}
        if key in ("anyOf", "oneOf"):
            return {"anyOf": [self.schema(where, branch) for branch in value]}
        if key == "items":
            return {key: self.schema(f"{where}[]", value)}
        if key in ("properties", "$defs"):
            inner = {
                name: self.schema(f"{where}.{name}", value[name]) for name in value
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
