"""Schemas of an OpenAPI document, as JSON Schemas that stand for themselves.

References are followed inside of the document alone. A schema that another one refers
to is put under `$defs`, once, so that circles stay what they are.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from referencing import Registry, Resource
from referencing.exceptions import Unresolvable

from toolcell.core import ConfigError

MAX_SCHEMAS = 2_000
"""Schemas of one operation, those inside of others counted. With more it cannot be
used."""

MAX_ANSWER_SCHEMAS = 500
"""Schemas of an operation's answer, those inside of others counted. With more stubs say
nothing of it."""

_JOINS = 5
"""Schemas that are looked at for what they join by `allOf`, for each that an operation
or an answer may have. With more it cannot be used."""

_OF_SCHEMAS = frozenset({"properties", "patternProperties", "dependentSchemas"})
_SCHEMA = frozenset(
    "items additionalProperties not if then else contains propertyNames"
    " unevaluatedItems unevaluatedProperties".split()
)
_SCHEMAS = frozenset({"anyOf", "oneOf", "prefixItems"})
_LEFT_OUT = frozenset(
    "$id $schema $anchor $dynamicAnchor $vocabulary $defs definitions $ref nullable"
    " discriminator xml externalDocs example examples readOnly writeOnly".split()
)
_MEND = "whoever wrote the document has to mend it"


def unfit(reason: str) -> ConfigError:
    """Return the error of an operation that cannot be a tool."""
    return ConfigError(reason, hint=_MEND)


class Document:
    """A document whose parts may refer to each other.

    Args:
        values: Its plain values.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.is_30 = str(values["openapi"]).startswith("3.0.")
        # An opaque resource: pointers are followed, and no `$id` or anchor counts.
        registry: Registry[Any] = Registry()
        self._resolver = registry.with_resource("", Resource.opaque(values)).resolver()

    def target(self, reference: Any) -> Any:
        """Return the value that a local reference leads to.

        Raises:
            ConfigError: It leads out of the document, to nothing, or in a circle.
        """
        seen: set[str] = set()
        while True:
            if not isinstance(reference, str) or not reference.startswith("#/"):
                raise unfit("it refers to what is not in its document")
            if reference in seen:
                raise unfit("it refers to itself")
            seen.add(reference)
            try:
                value = self._resolver.lookup(reference).contents
            except (Unresolvable, ValueError, TypeError):
                raise unfit("it refers to what is not in its document") from None
            if not isinstance(value, dict) or value.keys() != {"$ref"}:
                return value
            reference = value["$ref"]

    def followed(self, value: Any) -> Any:
        """Return the value itself, or the one that it refers to."""
        if isinstance(value, dict) and "$ref" in value:
            return self.target(value["$ref"])
        return value


class SchemaBundle:
    """Makes JSON Schemas of a document's; what they share is under `defs`.

    Args:
        document: The document.
        hidden: The keyword of properties that are left out: of requests those that are
            read-only, and of answers those that are write-only.
        max_schemas: Schemas that may be made, those inside of others counted.
    """

    def __init__(
        self,
        document: Document,
        hidden: Literal["readOnly", "writeOnly"] = "readOnly",
        max_schemas: int = MAX_SCHEMAS,
    ) -> None:
        self.defs: dict[str, Any] = {}
        self._document = document
        self._hidden = hidden
        self._names: dict[str, str] = {}
        self._open: list[str] = []
        self._max = self._left = max_schemas
        self._joins_left = self._max_joins = max_schemas * _JOINS

    def schema(self, schema: Any) -> Any:
        """Return a JSON Schema. Raises ConfigError."""
        made = self._converted(schema)
        while self._open:
            reference = self._open.pop()
            target = self._document.target(reference)
            self.defs[self._names[reference]] = self._converted(target)
        return made

    def _converted(self, schema: Any, hidden: frozenset[str] = frozenset()) -> Any:
        """Return a JSON Schema.

        Args:
            schema: The schema of the document.
            hidden: Properties that schemas beside it say to be hidden.
        """
        self._left -= 1
        if self._left < 0:
            raise unfit(f"it has more than {self._max:,} schemas")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise unfit("a schema of it is neither an object nor a boolean")
        if "$dynamicRef" in schema:
            raise unfit("it uses $dynamicRef")
        if "$ref" in schema:
            made = {"$ref": f"#/$defs/{self._name(schema['$ref'])}"}
            if self._document.is_30:
                return made
            return made | self._keywords(schema, hidden)
        made = self._keywords(schema, hidden)
        return _as_of_31(schema, made) if self._document.is_30 else made

    def _keywords(
        self, schema: dict[str, Any], hidden: frozenset[str]
    ) -> dict[str, Any]:
        made: dict[str, Any] = {}
        hidden |= self._hidden_names(schema)
        for key, value in schema.items():
            if key in _OF_SCHEMAS and isinstance(value, dict):
                made[key] = {
                    name: self._converted(item)
                    for name, item in value.items()
                    if not self._is_hidden(item)
                }
            elif key == "allOf" and isinstance(value, list):
                made[key] = [self._converted(item, hidden) for item in value]
            elif key in _SCHEMA:
                made[key] = self._converted(value)
            elif key in _SCHEMAS and isinstance(value, list):
                made[key] = [self._converted(item) for item in value]
            elif key not in _LEFT_OUT and not key.startswith("x-"):
                made[key] = value
        if isinstance(schema.get("required"), list):
            made["required"] = [
                name
                for name in schema["required"]
                if not (isinstance(name, str) and name in hidden)
            ]
        return made

    def _hidden_names(self, schema: dict[str, Any]) -> frozenset[str]:
        """Return the properties that are hidden, here or in what is joined to it."""
        names: set[str] = set()
        seen: set[str] = set()
        left: list[Any] = [schema]
        while left:
            each = left.pop()
            if not isinstance(each, dict):
                continue
            self._joins_left -= 1
            if self._joins_left < 0:
                raise unfit(f"it joins more than {self._max_joins:,} schemas")
            properties, joined = each.get("properties"), each.get("allOf")
            if isinstance(properties, dict):
                names |= {n for n, of in properties.items() if self._is_hidden(of)}
            if isinstance(joined, list):
                left += joined
            reference = each.get("$ref")
            if isinstance(reference, str) and reference not in seen:
                seen.add(reference)
                left.append(self._document.target(reference))
        return frozenset(names)

    def _is_hidden(self, schema: Any) -> bool:
        # Part of answers alone, which a request has to leave out, or of requests alone.
        found = self._document.followed(schema)
        return any(
            isinstance(each, dict) and each.get(self._hidden) is True
            for each in (schema, found)
        )

    def _name(self, reference: Any) -> str:
        if not isinstance(reference, str):
            raise unfit("it refers to what is not in its document")
        if reference not in self._names:
            last = re.sub(r"[^A-Za-z0-9_.-]", "_", reference.rpartition("/")[2])
            taken = set(self._names.values())
            numbered = (f"{last}_{number}" for number in range(2, len(taken) + 3))
            name = last
            while name in taken:
                name = next(numbered)
            self._names[reference] = name
            self._open.append(reference)
        return self._names[reference]


def _as_of_31(schema: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords of OpenAPI 3.0 as those of JSON Schema."""
    for end in ("Minimum", "Maximum"):
        exclusive, bound = f"exclusive{end}", end.lower()
        if isinstance(made.get(exclusive), bool):
            if made.pop(exclusive) and bound in made:
                made[exclusive] = made.pop(bound)
    if schema.get("nullable") is not True:
        return made
    if isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
        if isinstance(made.get("enum"), list) and None not in made["enum"]:
            made["enum"] = [*made["enum"], None]
        return made
    return {"anyOf": [made, {"type": "null"}]}
