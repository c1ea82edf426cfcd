"""Tools in the shapes of providers, compared with files.

The shapes are those of `ChatCompletionToolParam` (openai-python), `ToolParam`
(anthropic-sdk-python) and `Tool` of the MCP schema. After a change that is meant, this
writes the files anew:

    TOOLCELL_WRITE_GOLDEN=1 pytest tests/tools/export/test_provider_export.py
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from toolcell.core import ConfigError
from toolcell.tools import (
    JSONSchemaTool,
    Tool,
    ToolContext,
    ToolRegistry,
    to_anthropic,
    to_mcp,
    to_openai,
    tool,
)

GOLDEN = Path(__file__).parent / "golden"
PROVIDER_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Stop(BaseModel):
    """A place on the way."""

    city: str
    nights: Annotated[int, Field(ge=1, le=30)] = 1
    then: Stop | None = None


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(
    name="travel.plan",
    version="2.0.0",
    idempotent=True,
    examples=[{"first": {"city": "Rome"}}],
)
def plan(
    first: Stop,
    context: ToolContext,
    style: Literal["slow", "fast"] = "slow",
    start: dt.date | None = None,
    seats: Annotated[list[str], Field(min_length=1, max_length=4)] = ["1A"],  # noqa: B006
    mail: Annotated[str, Field(pattern="@", max_length=80)] = "a@b.c",
) -> str:
    """Plan a journey.

    Args:
        first: Where it begins.
        style: How fast.
        start: The first day.
        seats: Which seats.
        mail: Where to write to.
    """
    return first.city


far = JSONSchemaTool(
    lambda arguments: arguments,
    name="far-search_2",
    description="Search far away.",
    parameters={
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 1},
            "sort": {"oneOf": [{"const": "up"}, {"const": "down"}]},
        },
        "required": ["query"],
        "additionalProperties": False,
    },
)
TOOLS: list[Tool] = [add, plan, far]


def strict(subject: Tool) -> dict[str, Any]:
    return to_openai(subject, strict=True)


EXPORTERS: dict[str, Callable[[Tool], dict[str, Any]]] = {
    "openai": to_openai,
    "openai_strict": strict,
    "anthropic": to_anthropic,
    "mcp": to_mcp,
}


@pytest.mark.promise("LT-14", "LT-29", "GR-28", "OR-15", "X-07")
@pytest.mark.parametrize("provider", EXPORTERS)
def test_exports_are_as_written_down(provider: str) -> None:
    """LT-14, LT-29, GR-28, OR-15, X-07."""
    exported = [EXPORTERS[provider](each) for each in TOOLS]
    path = GOLDEN / f"{provider}.json"
    if os.environ.get("TOOLCELL_WRITE_GOLDEN"):
        path.write_text(json.dumps(exported, indent=2, ensure_ascii=False) + "\n")

    assert exported == json.loads(path.read_text())


@pytest.mark.promise("GA-11")
@pytest.mark.parametrize("provider", EXPORTERS)
@pytest.mark.parametrize("subject", TOOLS, ids=lambda each: each.name)
def test_exported_schemas_and_names_are_valid(provider: str, subject: Tool) -> None:
    exported = EXPORTERS[provider](subject)
    body = exported.get("function", exported)
    [schema] = [value for key, value in body.items() if key in SCHEMA_KEYS]

    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    if provider == "mcp":
        assert body["name"] == subject.name
    else:
        assert PROVIDER_NAME.fullmatch(body["name"])
        assert ToolRegistry(TOOLS).get(body["name"]) is subject


SCHEMA_KEYS = ("parameters", "input_schema", "inputSchema")


def objects(schema: Any) -> list[dict[str, Any]]:
    """Return the schemas of objects inside a schema."""
    if isinstance(schema, list):
        return [each for item in schema for each in objects(item)]
    if not isinstance(schema, dict):
        return []
    inside = [each for value in schema.values() for each in objects(value)]
    return inside + ([schema] if schema.get("type") == "object" else [])


def test_strict_mode_keeps_openai_s_rules() -> None:
    """Every object is closed and requires all; nothing stands beside a reference."""
    for subject in TOOLS:
        schema = strict(subject)["function"]["parameters"]
        for object_schema in objects(schema):
            assert object_schema["additionalProperties"] is False
            assert object_schema["required"] == list(object_schema["properties"])
        text = json.dumps(schema)
        assert not re.search('"(default|maxLength|oneOf|title)":', text)
        assert not re.search(r'"\$ref": "[^"]*", ', text)


def test_what_strict_mode_gives_is_valid_here() -> None:
    """A model held to the strict schema always writes arguments that pass."""
    arguments = {
        "first": {"city": "Rome", "nights": 2, "then": None},
        "style": "fast",
        "start": None,
        "seats": ["2B"],
        "mail": "x@y.z",
    }
    schema = strict(plan)["function"]["parameters"]

    Draft202012Validator(schema).validate(arguments)
    assert plan.validate(arguments).json["start"] is None


@pytest.mark.promise("X-09")
@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (Any, "value: .* a value of any type"),
        (dict[str, int], "value: .* an open object"),
        (list[Any], r"value\[\]: .* a value of any type"),
        (tuple[int, str], "prefixItems"),
        (list[dict[str, str]], r"value\[\]: .* an open object"),
    ],
)
def test_strict_mode_refuses_what_it_cannot_express(
    annotation: Any, reason: str
) -> None:
    def f(value):  # type: ignore[no-untyped-def]
        return value

    f.__annotations__ = {"value": annotation}
    with pytest.raises(ConfigError, match=reason):
        strict(tool(f))
    to_openai(tool(f))


@pytest.mark.promise("LT-52")
def test_an_export_shares_nothing_with_the_tool() -> None:
    for export in EXPORTERS.values():
        before = json.dumps(add.parameters)
        exported = export(add)
        body = exported.get("function", exported)
        for key in SCHEMA_KEYS:
            body.get(key, {}).clear()
        assert json.dumps(add.parameters) == before


@pytest.mark.promise("LT-29")
def test_exports_follow_the_agent() -> None:
    registry = ToolRegistry(TOOLS, visible=lambda agent, each: each.name == agent)
    view = registry.snapshot().for_agent("add")

    assert [to_mcp(each)["name"] for each in view] == ["add"]


class Colour(StrEnum):
    RED = "red"


def written(parameters: dict[str, Any]) -> Tool:
    return JSONSchemaTool(
        lambda arguments: arguments,
        name="written",
        description="Do it.",
        parameters=parameters,
    )


@pytest.mark.promise("T16")
@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {"a": {"type": "string"}}},
        {"type": "object"},
        {
            "type": "object",
            "properties": {
                "at": {"type": "object", "properties": {"x": {"type": "integer"}}}
            },
        },
    ],
)
def test_an_object_that_says_nothing_of_other_keys_has_none(
    parameters: dict[str, Any],
) -> None:
    schema = strict(written(parameters))["function"]["parameters"]

    assert schema["additionalProperties"] is False
    for inner in schema["properties"].values():
        assert inner.get("additionalProperties", False) is False


@pytest.mark.promise("T16")
@pytest.mark.parametrize(
    "inner", [{"type": "object"}, {"type": "object", "additionalProperties": True}]
)
def test_an_object_of_any_keys_is_still_refused(inner: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="an open object"):
        strict(written({"type": "object", "properties": {"any": inner}}))


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


@pytest.mark.promise("T16")
def test_what_stands_beside_a_reference_stays() -> None:
    @tool
    def paint(
        pet: Annotated[Cat | Dog, Field(discriminator="kind")],
        colour: Annotated[Colour, Field(description="Which one.")] = Colour.RED,
    ) -> None:
        """Paint."""

    properties = strict(paint)["function"]["parameters"]["properties"]
    assert properties["colour"]["enum"] == ["red"]
    assert properties["colour"]["description"] == 'Which one. Default: "red".'
    assert len(properties["pet"]["anyOf"]) == 2


@pytest.mark.promise("T17")
def test_what_the_messages_api_refuses_is_not_sent() -> None:
    parameters = {
        "type": "object",
        "properties": {"all": {"type": "string"}},
        "anyOf": [
            {"properties": {"id": {"type": "integer"}}, "required": ["id"]},
            {"$ref": "#/$defs/Named"},
        ],
        "$defs": {
            "Named": {"allOf": [{"properties": {"name": {"type": "string"}}}]},
        },
    }
    schema = to_anthropic(written(parameters))["input_schema"]

    assert not schema.keys() & {"anyOf", "oneOf", "allOf"}
    assert set(schema["properties"]) == {"all", "id", "name"}


@pytest.mark.promise("T17")
@pytest.mark.parametrize("name", ["filter[x]", "a b", "x" * 65])
def test_a_property_that_the_messages_api_refuses_is_told(name: str) -> None:
    made = written({"type": "object", "properties": {name: {"type": "string"}}})

    with pytest.raises(ConfigError, match="no property of such a name"):
        to_anthropic(made)
    assert any("Messages API" in remark for remark in made.remarks())
