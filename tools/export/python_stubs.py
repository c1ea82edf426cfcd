"""Tools as Python stubs, for models that write programs."""

from __future__ import annotations

import keyword
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ..definition.tool import Tool

MAX_SENTENCE = 160
"""Characters of a sentence about a tool. When it is reached the rest is left out."""

MAX_TYPES = 1_000
"""Types that are written of one schema. When it is reached the others are `Any`."""

MAX_CHARACTERS = 65_536
"""Length of the types of one schema. When it is reached the others are `Any`."""

MAX_NAME = 200
"""Characters of a class's name. An object whose name would be longer is a `dict`."""

MAX_LEVELS = 20
"""Types inside each other. When it is reached what is inside is `Any`."""

_PLAIN = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "array": "list[Any]",
    "object": "dict[str, Any]",
}


def stub(name: str, tool: Tool) -> str:
    """Return the signature and docstring of a tool, after the types that it names.

    What the schema cannot say in Python is `Any`.
    """
    signature, classes = _signature(name, tool)
    schemas: Mapping[str, Any] = tool.parameters.get("properties", {})
    function = f"{signature}:\n{_docstring(tool, schemas)}"
    return "\n\n".join([*classes, function])


def short_stub(name: str, tool: Tool) -> str:
    """Return the signature of a tool and the first sentence about it, as one line."""
    signature, _ = _signature(name, tool)
    sentence = re.split(r"(?<=[.!?])\s", " ".join(tool.description.split()))[0]
    return f"{signature}: ...  # {sentence[:MAX_SENTENCE]}"


def _signature(name: str, tool: Tool) -> tuple[str, list[str]]:
    """Return a tool's signature, and the classes that it names."""
    types = _Types(name, tool.parameters)
    returned = _Types(f"{name}_returns", tool.usual_result)
    arguments = _arguments(name, tool.parameters, types)
    arrow = returned.text(returned.schema, f"{name}_returns")
    signature = f"def {name}({arguments}) -> {arrow}"
    return signature, [*types.classes(), *returned.classes()]


class _Types:
    """The types of one schema as Python writes them.

    Args:
        owner: The beginning of the names of classes.
        schema: The schema; its `$defs` are those of all schemas in it.
    """

    def __init__(self, owner: str, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        self._owner = owner
        found = schema.get("$defs")
        # Draft 7 has its definitions elsewhere: there this may be anything.
        self._definitions: Mapping[str, Any] = (
            found if isinstance(found, Mapping) else {}
        )
        self._classes: dict[str, str] = {}
        self._made: dict[str, Mapping[str, Any]] = {}
        self._open: set[str] = set()
        self._left = MAX_TYPES
        self._characters = MAX_CHARACTERS
        self._levels = 0

    def classes(self) -> list[str]:
        """Return the classes that texts so far have named."""
        return list(self._classes.values())

    def text(self, schema: Any, name: str) -> str:
        """Return the annotation of a schema.

        Args:
            schema: The schema.
            name: The name of the class that it becomes, if it is an object of fields.
        """
        # Each of thirty definitions may name the next one twice.
        self._left -= 1
        if self._left < 0 or self._characters <= 0 or self._levels >= MAX_LEVELS:
            return "Any"
        self._levels += 1
        try:
            text = self._text(schema, name)
        finally:
            self._levels -= 1
        self._characters -= len(text)
        return text

    def _text(self, schema: Any, name: str) -> str:
        if not isinstance(schema, Mapping):
            return "Any"
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._named(reference.removeprefix("#/$defs/"))
        if "const" in schema or "enum" in schema:
            values = _listed(schema, "enum") or [schema.get("const", ...)]
            plain = all(isinstance(value, str | int | None) for value in values)
            return f"Literal[{', '.join(map(repr, values))}]" if plain else "Any"
        members = _listed(schema, "anyOf") or _listed(schema, "oneOf")
        if members:
            return self._union(members, name)
        kind = schema.get("type")
        if isinstance(kind, list):
            return self._union([{**schema, "type": each} for each in kind], name)
        if kind == "array" and "items" in schema:
            return f"list[{self.text(schema['items'], name)}]"
        if kind == "object":
            return self._object(schema, name)
        return _PLAIN.get(str(kind), "Any")

    def _union(self, members: Sequence[Any], name: str) -> str:
        texts = dict.fromkeys(self.text(member, name) for member in members)
        return "Any" if "Any" in texts else " | ".join(texts)

    def _object(self, schema: Mapping[str, Any], name: str) -> str:
        if _has_fields(schema) and _is_name(name) and len(name) <= MAX_NAME:
            made = self._made.setdefault(name, schema)
            # Two objects in one place cannot have one name.
            if made == schema:
                return name if name in self._classes else self._class(schema, name)
        if isinstance(schema.get("additionalProperties"), dict):
            return f"dict[str, {self.text(schema['additionalProperties'], name)}]"
        return _PLAIN["object"]

    def _named(self, definition: str) -> str:
        schema = self._definitions.get(definition, {})
        if not _has_fields(schema):
            return self._alias(definition, schema)
        name = f"{self._owner}_{definition}"
        if isinstance(schema.get("type"), list):
            # It may be something else, too, such as null.
            return self.text(schema, name)
        return self._object(schema, name)

    def _class(self, schema: Mapping[str, Any], name: str) -> str:
        self._classes[name] = ""
        required = _listed(schema, "required")
        lines = [
            f"    {field}: {self._field(about, f'{name}_{field}', field in required)}"
            for field, about in schema["properties"].items()
        ]
        self._classes[name] = "\n".join([f"class {name}(TypedDict):", *lines])
        return name

    def _alias(self, definition: str, schema: Any) -> str:
        if definition in self._open:
            # It is made of itself, and has no name in Python.
            return "Any"
        self._open.add(definition)
        try:
            return self.text(schema, f"{self._owner}_{definition}")
        finally:
            self._open.remove(definition)

    def _field(self, schema: Any, name: str, required: bool) -> str:
        text = self.text(schema, name)
        return text if required else f"NotRequired[{text}]"


def _has_fields(schema: Any) -> bool:
    fields = schema.get("properties") if isinstance(schema, Mapping) else {}
    return isinstance(fields, Mapping) and bool(fields) and all(map(_is_name, fields))


def _listed(schema: Mapping[str, Any], keyword: str) -> Sequence[Any]:
    values = schema.get(keyword)
    return values if isinstance(values, list | tuple) else ()


def _arguments(owner: str, parameters: Mapping[str, Any], types: _Types) -> str:
    schemas: Mapping[str, Any] = parameters.get("properties", {})
    required = parameters.get("required", ())
    parts = []
    has_default = keywords_only = False
    for name, schema in schemas.items():
        if not _is_name(name):
            continue
        text = f"{name}: {types.text(schema, f'{owner}_{name}')}"
        if name not in required:
            default = schema.get("default", ...) if isinstance(schema, dict) else ...
            text += " = ..." if default is ... else f" = {default!r}"
            has_default = True
        elif has_default and not keywords_only:
            # Python lets no parameter without a default follow one that has one.
            parts.append("*")
            keywords_only = True
        parts.append(text)
    if not all(map(_is_name, schemas)):
        parts.append("**others: Any")
    return ", ".join(parts)


def _docstring(tool: Tool, schemas: Mapping[str, Any]) -> str:
    lines = [tool.description]
    described = {
        name: schema["description"]
        for name, schema in schemas.items()
        if isinstance(schema, dict) and schema.get("description")
    }
    for name in schemas:
        if not _is_name(name):
            described.setdefault(name, "")
    if described:
        lines += [
            "",
            "Args:",
            *(f"    {name}: {text}" for name, text in described.items()),
        ]
    # Whatever a description says, it stays inside its quotes.
    text = "\n".join(lines).replace("\\", r"\\")
    if '"""' in text or text.endswith('"'):
        text = text.replace('"', r"\"")
    return textwrap.indent(f'"""{text}\n"""' if described else f'"""{text}"""', "    ")


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)
