"""Tools as Python stubs, for models that write programs."""

from __future__ import annotations

import inspect
import keyword
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from ..definition.function_tool import FunctionTool
from ..definition.signature import resolve_annotations
from ..definition.tool import Tool

MAX_SENTENCE = 160
"""Characters of a sentence about a tool. When it is reached the rest is left out."""

MAX_TYPES = 1_000
"""Types that are written of one schema. When it is reached the others are `Any`."""

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
    types = _Types(name, tool.parameters)
    schemas: Mapping[str, Any] = tool.parameters.get("properties", {})
    signature = _signature(schemas, tool.parameters.get("required", ()), types)
    returned = _Types(f"{name}_result", _returned(tool))
    arrow = returned.text(returned.schema)
    function = f"def {name}({signature}) -> {arrow}:\n{_docstring(tool, schemas)}"
    return "\n\n".join([*types.classes(), *returned.classes(), function])


def short_stub(name: str, tool: Tool) -> str:
    """Return the signature of a tool and the first sentence about it, as one line."""
    types = _Types(name, tool.parameters)
    schemas: Mapping[str, Any] = tool.parameters.get("properties", {})
    signature = _signature(schemas, tool.parameters.get("required", ()), types)
    returned = _Types(f"{name}_result", _returned(tool))
    sentence = re.split(r"(?<=[.!?])\s", " ".join(tool.description.split()))[0]
    arrow = returned.text(returned.schema)
    return f"def {name}({signature}) -> {arrow}: ...  # {sentence[:MAX_SENTENCE]}"


class _Types:
    """The types of one schema as Python writes them."""

    def __init__(self, owner: str, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        self._owner = owner
        self._definitions: Mapping[str, Any] = schema.get("$defs", {})
        self._classes: dict[str, str] = {}
        self._open: set[str] = set()
        self._left = MAX_TYPES
        self._levels = 0

    def classes(self) -> list[str]:
        """Return the classes that texts so far have named."""
        return list(self._classes.values())

    def text(self, schema: Any) -> str:
        """Return the annotation of a schema."""
        # Each of thirty definitions may name the next one twice.
        self._left -= 1
        if self._left < 0 or self._levels >= MAX_LEVELS:
            return "Any"
        self._levels += 1
        try:
            return self._text(schema)
        finally:
            self._levels -= 1

    def _text(self, schema: Any) -> str:
        if not isinstance(schema, Mapping):
            return "Any"
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._named(reference.removeprefix("#/$defs/"))
        if "const" in schema or "enum" in schema:
            values = schema.get("enum", [schema.get("const")])
            plain = all(isinstance(each, str | int | None) for each in values)
            return f"Literal[{', '.join(map(repr, values))}]" if plain else "Any"
        members = schema.get("anyOf") or schema.get("oneOf")
        if members:
            return self._union(members)
        kind = schema.get("type")
        if isinstance(kind, list):
            return self._union([{**schema, "type": each} for each in kind])
        if kind == "array" and "items" in schema:
            return f"list[{self.text(schema['items'])}]"
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
            return f"dict[str, {self.text(schema['additionalProperties'])}]"
        return _PLAIN.get(str(kind), "Any")

    def _union(self, members: list[Any]) -> str:
        texts = dict.fromkeys(self.text(each) for each in members)
        return "Any" if "Any" in texts else " | ".join(texts)

    def _named(self, definition: str) -> str:
        schema = self._definitions.get(definition, {})
        fields = schema.get("properties")
        if not fields or not all(map(_is_name, fields)):
            return self._alias(definition, schema)
        name = f"{self._owner}_{definition}"
        if not _is_name(name):
            return "dict[str, Any]"
        if name not in self._classes:
            self._classes[name] = ""
            required = schema.get("required", ())
            lines = [
                f"    {field}: {self._field(about, field in required)}"
                for field, about in fields.items()
            ]
            self._classes[name] = "\n".join([f"class {name}(TypedDict):", *lines])
        return name

    def _alias(self, definition: str, schema: Any) -> str:
        if definition in self._open:
            # It is made of itself, and has no name in Python.
            return "Any"
        self._open.add(definition)
        try:
            return self.text(schema)
        finally:
            self._open.remove(definition)

    def _field(self, schema: Any, required: bool) -> str:
        text = self.text(schema)
        return text if required else f"NotRequired[{text}]"


def _signature(schemas: Mapping[str, Any], required: Any, types: _Types) -> str:
    parts = []
    has_default = keywords_only = False
    for name, schema in schemas.items():
        if not _is_name(name):
            continue
        text = f"{name}: {types.text(schema)}"
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


def _returned(tool: Tool) -> dict[str, Any]:
    """Return the JSON Schema of what a tool returns; empty if it does not say."""
    if not isinstance(tool, FunctionTool):
        return {}
    carrier = inspect.Parameter("return_", inspect.Parameter.KEYWORD_ONLY)
    try:
        annotation = inspect.signature(tool.function).return_annotation
        if annotation is inspect.Signature.empty:
            return {}
        written = carrier.replace(annotation=annotation)
        found = resolve_annotations(tool.function, [written], {})["return_"]
        return TypeAdapter(found).json_schema(mode="serialization")
    except Exception:  # noqa: BLE001 - a type's own code makes its schema
        return {}


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)
