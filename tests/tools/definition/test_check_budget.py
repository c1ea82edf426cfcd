"""Schemas of others that would take exponential time, or for ever, to check."""

from __future__ import annotations

from typing import Any

import pytest

from toolcell.core import ToolValidationError
from toolcell.tools import JSONSchemaTool
from toolcell.tools.definition import check_budget
from toolcell.tools.definition.check_budget import MAX_STEPS
from toolcell.tools.definition.json_schema import build_validator, problems_of

LEVELS = 40


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def doubling(keyword: str, last: Any) -> dict[str, Any]:
    """Return schemas each of which refers twice to the next one."""
    parts = {f"A{n}": {keyword: [ref(f"A{n + 1}")] * 2} for n in range(LEVELS)}
    return {**ref("A0"), "$defs": {**parts, f"A{LEVELS}": last}}


HOSTILE: dict[str, dict[str, Any]] = {
    "anyOf": doubling("anyOf", False),
    "allOf": doubling("allOf", True),
    "oneOf": doubling("oneOf", True),
    "not of itself": {**ref("A"), "$defs": {"A": {"not": ref("A")}}},
    "itself": {**ref("A"), "$defs": {"A": {"allOf": [ref("A")]}}},
    "each other": {**ref("A"), "$defs": {"A": ref("B"), "B": {"anyOf": [ref("A")]}}},
    "if": {**ref("A"), "$defs": {"A": {"if": ref("A"), "then": ref("A")}}},
    "unevaluated": {**doubling("allOf", True), "unevaluatedProperties": False},
}


@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.promise("R58")
def test_a_hostile_schema_refuses_its_value_and_ends(schema: dict[str, Any]) -> None:
    problems = problems_of(build_validator("t", schema), {"a": 1})

    assert [problem.expected for problem in problems] == [
        "less for its schema to check"
    ]


def test_a_call_of_a_tool_with_a_hostile_schema_is_refused() -> None:
    schema = {"type": "object", **HOSTILE["anyOf"]}
    made = JSONSchemaTool(lambda arguments: arguments, name="t", parameters=schema)
    with pytest.raises(ToolValidationError, match="less for its schema to check"):
        made.validate({"a": 1})


def test_a_large_value_may_take_more_steps() -> None:
    several = {"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "integer"}]}
    schema = {"type": "array", "items": several}
    value = list(range(MAX_STEPS // 2))

    assert problems_of(build_validator("t", schema), value) == []
    [problem, *_] = problems_of(build_validator("t", schema), [*value, 1.5])
    assert problem.expected == "string or null or integer"


@pytest.mark.promise("R2")
def test_the_check_of_a_large_value_rests_at_each_of_its_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests: list[None] = []
    monkeypatch.setattr(check_budget, "rest", lambda: rests.append(None))
    schema = {"type": "array", "items": {"type": "integer"}}

    assert problems_of(build_validator("t", schema), [1] * 1_000) == []
    assert len(rests) >= 1_000


def test_values_of_many_levels_are_checked_or_refused() -> None:
    tree = {"type": "object", "properties": {"a": ref("tree")}}
    validator = build_validator("t", {**ref("tree"), "$defs": {"tree": tree}})

    def nested(levels: int) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for _ in range(levels):
            value = {"a": value}
        return value

    assert problems_of(validator, nested(60)) == []
    assert len(problems_of(validator, nested(1_000))) == 1
