"""Schemas of strangers that are large once they are exported."""

from __future__ import annotations

import time
from typing import Any

import pytest

from toolcell.core import ConfigError
from toolcell.tools import JSONSchemaTool, Tool, to_anthropic, to_openai
from toolcell.tools.export.openai_strict import strict_schema

pytestmark = pytest.mark.promise("R58")


def made(schema: dict[str, Any]) -> Tool:
    given = {"type": "object", **schema}
    return JSONSchemaTool(lambda arguments: arguments, name="far", parameters=given)


def named(definition: str) -> dict[str, str]:
    """Return a reference with words beside it."""
    return {"$ref": f"#/$defs/{definition}", "description": "Which one."}


def two_of(definition: str) -> dict[str, Any]:
    sides = {side: named(definition) for side in ("left", "right")}
    return {"type": "object", "properties": sides}


TOO_MUCH = "over 500,000 characters of definitions written out"
LONG = {"enum": [f"{n:08}" for n in range(1_000)]}
DOUBLING = {f"d{n}": two_of(f"d{n + 1}") for n in range(40)}


@pytest.mark.parametrize(
    ("definitions", "reason"),
    [
        ({**DOUBLING, "d40": {"type": "integer"}}, TOO_MUCH),
        ({"d0": LONG}, TOO_MUCH),
        ({"d0": two_of("d0")}, "beside it that leads to itself"),
        ({"d0": two_of("d1"), "d1": two_of("d0")}, "beside it that leads to itself"),
        ({"d0": named("d0")}, "beside it that leads to itself"),
    ],
    ids=["doubling", "long", "itself", "each other", "alone"],
)
def test_references_that_grow_without_end_are_no_schema_of_strict_mode(
    definitions: dict[str, Any], reason: str
) -> None:
    properties = {f"top{n}": named("d0") for n in range(100)}
    far = made({"properties": properties, "$defs": definitions})

    with pytest.raises(ConfigError, match=f"^far.*: OpenAI's strict mode.*{reason}"):
        to_openai(far, strict=True)


def test_a_reference_to_a_reference_is_written_out() -> None:
    definitions = {"d0": {"$ref": "#/$defs/d1"}, "d1": {"type": "integer"}}
    far = made({"properties": {"top": named("d0")}, "$defs": definitions})

    properties = to_openai(far, strict=True)["function"]["parameters"]["properties"]
    assert properties["top"] == {"type": "integer", "description": "Which one."}


def test_too_many_levels_for_strict_mode_are_refused() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(10_000):
        schema = {"type": "array", "items": schema}

    with pytest.raises(ConfigError, match="cannot express so many levels"):
        strict_schema("far", schema)


def test_what_a_schema_joins_is_looked_at_once() -> None:
    again = {"anyOf": [{"$ref": "#/$defs/d0"}] * 300, "properties": {"a": {}}}
    far = made({"anyOf": [{"$ref": "#/$defs/d0"}], "$defs": {"d0": again}})

    start = time.thread_time()
    assert to_anthropic(far)["input_schema"]["properties"] == {"a": {}}
    assert time.thread_time() - start < 2


def test_a_long_chain_of_what_a_schema_joins_is_followed_to_its_end() -> None:
    chain: dict[str, Any] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(500)
    }
    far = made({"$ref": "#/$defs/d0", "$defs": {**chain, "d500": two_of("d0")}})

    assert set(to_anthropic(far)["input_schema"]["properties"]) == {"left", "right"}


def test_a_schema_stands_over_what_it_joins_and_later_ones_over_earlier_ones() -> None:
    texts = {name: {"type": name} for name in ("string", "integer", "null", "boolean")}
    parts = [
        {"properties": {"a": texts["string"], "b": texts["string"]}},
        {"properties": {"a": texts["integer"], "b": texts["integer"]}},
    ]
    definitions = {"d0": {"properties": dict.fromkeys("abc", texts["null"])}}
    own = {"properties": {"a": texts["boolean"]}, "$ref": "#/$defs/d0"}
    far = made({**own, "allOf": parts, "$defs": definitions})

    properties = to_anthropic(far)["input_schema"]["properties"]
    assert list(properties.items()) == [
        ("a", texts["boolean"]),
        ("b", texts["integer"]),
        ("c", texts["null"]),
    ]
