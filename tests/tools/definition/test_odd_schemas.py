"""Schemas of strangers that are odd: each costs its own tool at most."""

from __future__ import annotations

import time
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from toolcell.core import ConfigError, ToolValidationError
from toolcell.tools import JSONSchemaTool
from toolcell.tools.definition.json_schema import (
    BuiltValidator,
    build_validator,
    problems_of,
)
from toolcell.tools.definition.linear_keywords import linear_validator_class

JSON_SCHEMA = "json-schema.org/draft"
DRAFT_2019 = f"https://{JSON_SCHEMA}/2019-09/schema"
DRAFT_7 = f"http://{JSON_SCHEMA}-07/schema#"
DRAFT_4 = f"http://{JSON_SCHEMA}-04/schema#"
SECONDS = 60
"""jsonschema takes minutes."""


def with_x(schema: Any, **others: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}, **others}


def aside(schema: Any) -> dict[str, Any]:
    """Return a schema that refers to one where no schema is looked for."""
    return with_x({"$ref": "#/components/a"}, components={"a": schema})


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a number as draft": (with_x({}, **{"$schema": 5}), "unknown draft"),
    "a list as draft": (with_x({}, **{"$schema": []}), "unknown draft"),
    "an object as draft": (with_x({}, **{"$schema": {}}), "unknown draft"),
    "null as draft": (with_x({}, **{"$schema": None}), "unknown draft"),
    "draft 3": (
        with_x({}, **{"$schema": f"http://{JSON_SCHEMA}-03/schema#"}),
        "unknown draft",
    ),
    "draft 7 by https": (
        with_x({}, **{"$schema": DRAFT_7.replace("http:", "https:")}),
        "unknown draft",
    ),
    "another draft inside": (with_x({"$schema": DRAFT_7}), "part of another draft"),
    "another draft in $defs": (
        with_x({"$ref": "#/$defs/a"}, **{"$defs": {"a": {"$schema": DRAFT_4}}}),
        "part of another draft",
    ),
    "an unknown draft inside": (
        with_x({"$schema": "https://example.org/"}),
        "part of another draft",
    ),
    "another draft aside": (aside({"$schema": DRAFT_7}), "part of another draft"),
    "the draft of another one": (with_x({"$ref": DRAFT_7}), "part of another draft"),
    "a wrong type aside": (aside({"type": "strin"}), "not valid: type fails"),
    "a zero aside": (aside({"multipleOf": 0}), "not valid: multipleOf fails"),
    "a pattern aside": (aside({"pattern": "(?=a)"}), "linear time"),
    "a pattern below aside": (aside({"items": {"pattern": "(?=a)"}}), "linear time"),
    "a reference aside": (aside({"$ref": "#/nothing"}), "what is not in it"),
    "a text": (with_x({"$ref": "#/title"}, title="a"), "not valid"),
    "a letter of a text": (with_x({"$ref": "#/title/0"}, title="a"), "not valid"),
    "a list": (with_x({"$ref": "#/required"}, required=["x"]), "not valid"),
    "a default": (
        with_x({"$ref": "#/properties/x/default", "default": {"type": 5}}),
        "not valid",
    ),
    "no index": (with_x({"$ref": "#/allOf/x"}, allOf=[{}]), "what is not in it"),
    "no URL": (with_x({"$ref": "http://[::1"}), "what is not in it"),
    "no dynamic anchor": (with_x({"$dynamicRef": "#no"}), "what is not in it"),
    "an id that is no URL": (with_x({}, **{"$id": "http://[::1"}), "cannot be read"),
    "a pattern beside lists": (
        with_x(
            {},
            **{"$schema": DRAFT_7},
            dependencies={"a": ["x"], "x": {"items": {"pattern": "(?=a)"}}},
        ),
        "linear time",
    ),
}


@pytest.mark.promise("E-122")
@pytest.mark.parametrize(("schema", "reason"), REFUSED.values(), ids=REFUSED)
def test_an_odd_schema_is_refused_where_its_tool_is_made(
    schema: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        JSONSchemaTool(lambda arguments: arguments, name="t", parameters=schema)


NUMBER = {"type": "integer"}
FOLLOWED: dict[str, dict[str, Any]] = {
    "aside": aside(NUMBER),
    "percent": with_x({"$ref": "#/$defs/a%20b"}, **{"$defs": {"a b": NUMBER}}),
    "dynamic": with_x(
        {"$dynamicRef": "#n"}, **{"$defs": {"a": {"$dynamicAnchor": "n", **NUMBER}}}
    ),
    "relative": with_x(
        {"$ref": "b"},
        **{"$id": "https://example.org/a", "$defs": {"a": {"$id": "b", **NUMBER}}},
    ),
    "draft 4": with_x(
        {"$ref": "#foo"},
        **{"$schema": DRAFT_4, "definitions": {"a": {"id": "#foo", **NUMBER}}},
    ),
    "a base inside": with_x(
        {},
        allOf=[{"$id": "b", "$ref": "#/$defs/a", "$defs": {"a": with_x(NUMBER)}}],
        unevaluatedProperties=False,
    ),
    "its draft, twice": with_x(
        {"$schema": DRAFT_2019, **NUMBER}, **{"$schema": DRAFT_2019}
    ),
}


@pytest.mark.promise("E-122")
@pytest.mark.parametrize("schema", FOLLOWED.values(), ids=FOLLOWED)
def test_an_odd_schema_that_says_something_is_followed(schema: dict[str, Any]) -> None:
    made = JSONSchemaTool(lambda arguments: arguments, name="t", parameters=schema)

    made.validate({"x": 1})
    with pytest.raises(ToolValidationError, match="wrong type, expected"):
        made.validate({"x": "1"})


def test_a_field_may_have_the_name_of_a_keyword() -> None:
    schema = {"type": "object", "properties": {"$schema": NUMBER, "$ref": NUMBER}}

    assert problems_of(build_validator("t", with_x(schema)), {"x": {"$ref": 1}}) == []


def test_a_division_that_fails_refuses_the_number() -> None:
    [problem] = problems_of(build_validator("t", {"multipleOf": 0.5}), 10**400)

    assert problem.expected == "smaller numbers"


def test_a_reference_that_leads_nowhere_refuses_the_value() -> None:
    validator = linear_validator_class(Draft202012Validator)({"$ref": "#/no"})
    [problem] = problems_of(BuiltValidator(validator, {}), 1)

    assert problem.expected == "a schema whose references can be followed"


@pytest.mark.parametrize(
    ("wanted", "fit", "misfit"),
    [
        (1, [1, 1.0], [True, "1", 1.5, [1]]),
        (False, [False], [0, None, ""]),
        (10**20, [10**20, 1e20], [10**20 + 1]),
        ([{"a": 1.0, "b": "é"}], [[{"b": "é", "a": 1}]], [[{"a": 1}], [], "[]"]),
    ],
)
@pytest.mark.parametrize("keyword", ["enum", "const"])
def test_equal_values_are_those_of_json_schema(
    keyword: str, wanted: Any, fit: list[Any], misfit: list[Any]
) -> None:
    named = wanted if keyword == "const" else ["another", wanted]
    validator = build_validator("t", {keyword: named})

    assert [each for each in fit if problems_of(validator, each)] == []
    assert [each for each in misfit if not problems_of(validator, each)] == []


@pytest.mark.parametrize("value", [float("inf"), "\ud800"])
def test_what_json_cannot_write_is_no_value_of_a_list(value: Any) -> None:
    assert problems_of(build_validator("t", {"enum": [1]}), value)
    with pytest.raises(ConfigError, match="cannot be read"):
        build_validator("t", {"enum": [value]})


def with_patterns(*patterns: str) -> dict[str, Any]:
    return with_x({"allOf": [{"pattern": pattern} for pattern in patterns]})


CHINESE = "".join(chr(0x4E00 + 7 * n) for n in range(250))
LARGE_PATTERNS = {
    "classes": [rf"\w{{120}}{n}" for n in range(60)],
    "characters": [f"[{CHINESE}]{{592}}{n}" for n in range(20)],
    "digits": [rf"\d{{2005}}{n}" for n in range(9)],
    "one": [r"\w{20000}"],
    "in a class": [r"[^]\w]{20000}"],
    "groups": [r"((\w{30}b){30}c){30}"],
    "count of a count": [r"\w{200}{200}"],
    "optional groups": [r"(\w{200})?{200}"],
    "spaced": [r"\w{ 1 , 20000 }"],
    "comments": [r"\\(?ix)(\w{200}){#}\n200}"],
    "nested classes": [r"[[a]\w]{20000}"],
    "counts": ["a" + "{99}" * 10_000],
    "long": [r"\w" * 10_000],
}


@pytest.mark.promise("R58")
@pytest.mark.parametrize("patterns", LARGE_PATTERNS.values(), ids=LARGE_PATTERNS)
def test_patterns_that_are_large_to_compile_cost_their_tool(
    patterns: list[str],
) -> None:
    with pytest.raises(ConfigError, match="schema of t takes too long") as caught:
        build_validator("t", with_patterns(*patterns))
    assert "shorter patterns" in str(caught.value.hint)


def test_patterns_as_tools_have_them_are_kept() -> None:
    group, four = "([0-9a-f]{1,4}:)", "[0-9a-f]{1,4}"
    patterns = [
        "-".join(f"([0-9a-f]){{{count}}}" for count in (8, 4, 4, 4, 12)),
        f"^({group}{{7}}{four}|{group}{{1,7}}:|{group}{{1,4}}(:{four}){{1,3}})$",
        r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.){0,126}[a-z0-9]{1,63}$",
        *(rf"^[\w+=,.@-]{{1,128}}{n}$" for n in range(6)),
        r"^.{1,4096}$",
        r"\(?x",
        r"[(?x]",
        *(f"^ID{n}-[0-9]+$" for n in range(200)),
    ]
    assert build_validator("t", with_patterns(*patterns, *patterns))


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"^.{1,8000}$", ["x" * 8000]),
        (r"^[\s\S]{1,4000}$", ["x" * 3000] * 100),
        ("^((([0-9a-f]{1,4}:){1,7}|:)((:[0-9a-f]{1,4}){1,7}|:)){1,4}$", ["::"] * 1000),
    ],
)
def test_a_long_count_refuses_no_value_that_fits(
    pattern: str, texts: list[str]
) -> None:
    validator = build_validator("t", {"items": {"pattern": pattern}})

    assert problems_of(validator, texts) == []


def test_patterns_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    validator = build_validator("t", with_patterns("a$", "b$"))
    monkeypatch.delattr("toolcell.tools.definition.linear_patterns.SchemaValidator")

    assert problems_of(validator, {"x": "ab"})


@pytest.mark.promise("R58")
def test_a_text_in_which_much_is_looked_for_at_once_is_refused() -> None:
    validator = build_validator("t", with_patterns("[ab]*a[ab]{10000}c"))
    [problem] = problems_of(validator, {"x": "ab" * 10_000})

    assert problem.expected == "less for its schema to check"


class Compared(int):
    """A number that counts how often one is compared."""

    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return super().__eq__(other)

    __hash__ = int.__hash__


def numbers(last: int) -> list[int]:
    return [Compared(number) for number in (*range(20), last)]


LISTS = [numbers(last) for last in range(30)]
LIST_OF_THESE = {"$defs": {"a": {"enum": LISTS}}}


@pytest.mark.promise("R58")
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"allOf": [{"$ref": "#/$defs/a"}] * 90, **LIST_OF_THESE}, numbers(29)),
        ({"items": {"$ref": "#/$defs/a"}, **LIST_OF_THESE}, [numbers(29)] * 90),
        ({"items": {"const": numbers(29)}}, [numbers(29)] * 90),
    ],
    ids=["often", "items", "const"],
)
def test_values_are_not_compared_part_by_part(
    schema: dict[str, Any], value: Any
) -> None:
    validator = build_validator("t", schema)
    Compared.times = 0

    assert problems_of(validator, value) == []
    assert Compared.times == 0


MANY = 150_000
NAMES = {f"n{number}": 1 for number in range(MANY)}
SLOW: dict[str, tuple[dict[str, Any], Any]] = {
    "messages": (
        {"anyOf": [{"type": "string", "title": str(n)} for n in range(3_000)]},
        list(range(MANY)),
    ),
    "values": (
        {"items": {"not": {"enum": list(range(-9_000, 0))}}},
        list(range(MANY)),
    ),
    "names": ({"patternProperties": {f"^{n}$": {} for n in range(150)}}, NAMES),
    "texts": (
        {"allOf": [{"pattern": f"{n}$"} for n in range(150)]},
        "a" * 1_000_000,
    ),
    "enum": (
        {
            "allOf": [{"$ref": "#/$defs/a"}] * 900,
            "$defs": {"a": {"enum": [[[]] * 320 + [last] for last in range(38)]}},
        },
        [[]] * 320 + [37],
    ),
    "unique": ({"allOf": [{"uniqueItems": True}] * 2_000}, list(range(MANY))),
}


@pytest.mark.promise("R58")
@pytest.mark.parametrize(("schema", "value"), SLOW.values(), ids=SLOW)
def test_a_schema_that_reads_a_large_value_often_ends(
    schema: dict[str, Any], value: Any
) -> None:
    [problem] = problems_of(build_validator("t", schema), value)

    assert problem.expected == "less for its schema to check"


@pytest.mark.promise("R58")
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (
            {"allOf": [{"additionalProperties": True}], "unevaluatedProperties": False},
            NAMES,
        ),
        (
            {"contains": {}, "minContains": 0, "unevaluatedItems": False},
            list(range(MANY)),
        ),
    ],
    ids=["properties", "items"],
)
def test_what_others_looked_at_is_found_at_once(
    schema: dict[str, Any], value: Any
) -> None:
    validator = build_validator("t", schema)

    start = time.thread_time()
    assert problems_of(validator, value) == []
    assert time.thread_time() - start < SECONDS


@pytest.mark.promise("R58")
def test_a_schema_of_mixed_values_is_refused_at_once() -> None:
    mixed = [[number] if number % 2 else number for number in range(12_000)]

    start = time.thread_time()
    with pytest.raises(ConfigError, match="not valid: type fails"):
        build_validator("t", {"type": mixed})
    assert time.thread_time() - start < SECONDS
