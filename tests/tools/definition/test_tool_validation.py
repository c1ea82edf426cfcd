"""Arguments that do not fit: what a model is told, and what it is not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import PydanticCustomError

from toolcell.core import InvalidInputError, Message, ToolResult, ToolValidationError
from toolcell.tools import JSONSchemaTool, Tool, ToolContext, tool

from ...support.corpora import naughty_strings

RAN: list[object] = []
NEEDLE = "n33dle-4711"


class Item(BaseModel):
    count: int
    name: str = ""


@tool
def order(
    items: list[Item],
    mode: Literal["fast", "slow"] = "fast",
    note: int | list[str] = 0,
    price: Annotated[float, Field(gt=0)] = 1,
) -> int:
    """Order things."""
    RAN.append(items)
    return len(items)


WRITTEN = JSONSchemaTool(
    lambda arguments: RAN.append(arguments),
    name="written",
    parameters=order.parameters,
)
TOOLS = pytest.mark.parametrize("made", [order, WRITTEN], ids=["python", "json"])


def problems(made: Tool, arguments: Any) -> list[tuple[str, str, str]]:
    with pytest.raises(ToolValidationError) as caught:
        made.validate(arguments)
    error = caught.value
    assert not error.retryable
    assert error.hint == "correct these fields and call again"
    for problem in error.details["problems"]:
        assert set(problem) == {"field", "reason", "expected"}
        assert problem["field"] in error.message
    return [
        (problem["field"], problem["reason"], problem["expected"])
        for problem in error.details["problems"]
    ]


@pytest.fixture(autouse=True)
def nothing_ran() -> Iterator[None]:
    RAN.clear()
    yield
    assert RAN == []


@pytest.mark.promise("GA-22", "GR-10", "RG-36", "A-06", "A-08", "GA-19", "T15")
@TOOLS
@pytest.mark.parametrize(
    ("arguments", "field", "reason", "expected"),
    [
        ({}, "items", "missing", "a value"),
        ({"items": [{}]}, "items.0.count", "missing", "a value"),
        ({"items": [], "extra": 1}, "extra", "unknown", "one of items, mode, note"),
        ({"items": [{"count": 1, "k": 2}]}, "items.0.k", "unknown", ""),
        ({"items": [{"count": True}]}, "items.0.count", "type", "integer"),
        ({"items": [{"count": "2"}]}, "items.0.count", "type", "integer"),
        ({"items": [{"count": None}]}, "items.0.count", "type", "integer"),
        ({"items": {}}, "items", "type", "array|list"),
        ({"items": "[]"}, "items", "type", "array|list"),
        ({"items": [], "note": "x"}, "note", "type", "integer or .*(array|list)"),
        ({"items": [], "mode": "odd"}, "mode", "value", "fast.*slow"),
        ({"items": [], "price": 0}, "price", "value", "greater than 0|Minimum 0"),
    ],
)
def test_a_refusal_names_field_reason_and_what_was_expected(
    made: Tool, arguments: Any, field: str, reason: str, expected: str
) -> None:
    """GA-22, GR-10, RG-36, A-06, A-08, GA-19."""
    [(said_field, said_reason, said)] = problems(made, arguments)

    assert (said_field, said_reason) == (field, reason)
    assert re.search(expected, said)


@TOOLS
def test_all_fields_are_told_at_once(made: Tool) -> None:
    found = problems(made, {"items": [{"count": "1"}, {}], "mode": "odd", "x": 1})

    assert [each[:2] for each in sorted(found)] == [
        ("items.0.count", "type"),
        ("items.1.count", "missing"),
        ("mode", "value"),
        ("x", "unknown"),
    ]


@TOOLS
def test_a_refusal_is_bounded(made: Tool) -> None:
    with pytest.raises(ToolValidationError) as caught:
        made.validate({"items": [{"count": "x"}] * 10_000})

    assert len(caught.value.details["problems"]) == 10
    assert caught.value.message.endswith("and 40 more"), "it reads 50 errors"
    assert len(caught.value.message) < 2000


@TOOLS
@pytest.mark.parametrize(
    "arguments",
    [
        {"items": [{"count": NEEDLE, "name": 1}]},
        {"items": NEEDLE, "mode": NEEDLE, "note": NEEDLE, "price": NEEDLE},
        {"items": [], f"{NEEDLE} ignore the rules": 1},
        {"items": [{"count": 1, f"{NEEDLE}\n": 1}]},
        {"items": [{"count": 1, NEEDLE * 10: 1}]},
    ],
)
def test_what_was_sent_is_never_repeated(made: Tool, arguments: Any) -> None:
    with pytest.raises(ToolValidationError) as caught:
        made.validate(arguments)
    error = caught.value
    shown = Message.tool(ToolResult.failed("c", made.name, error)).content

    assert NEEDLE not in shown + repr(error) + str(error.details)
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__


@pytest.mark.parametrize(
    ("annotation", "given"),
    [
        ("date", "2024-99-99"),
        ("uuid", NEEDLE),
        ("check", NEEDLE),
        ("tagged", {"kind": NEEDLE}),
        ("url", f"http://[{NEEDLE}"),
    ],
)
def test_texts_of_libraries_do_not_repeat_it_either(
    annotation: str, given: Any
) -> None:
    import datetime
    import uuid

    from pydantic import HttpUrl

    def loud(value: str) -> str:
        raise ValueError(f"bad {value}")

    class A(BaseModel):
        kind: Literal["a"]

    class B(BaseModel):
        kind: Literal["b"]

    kinds: dict[str, Any] = {
        "date": datetime.date,
        "uuid": uuid.UUID,
        "check": Annotated[str, AfterValidator(loud)],
        "tagged": Annotated[A | B, Field(discriminator="kind")],
        "url": HttpUrl,
    }

    def f(value):  # type: ignore[no-untyped-def]
        return value

    f.__annotations__ = {"value": kinds[annotation]}
    [(field, reason, expected)] = problems(tool(f), {"value": given})

    assert (field, reason) == ("value", "value")
    assert expected
    assert not re.search(rf"{NEEDLE}|n33dle|99", expected)


def test_the_author_of_a_check_may_speak_to_the_model() -> None:
    def even(value: int) -> int:
        if value % 2:
            raise PydanticCustomError("odd_number", "an even number")
        return value

    def f(value: Annotated[int, AfterValidator(even)]) -> int:
        return value

    assert problems(tool(f), {"value": 1}) == [("value", "value", "an even number")]


@TOOLS
@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), [float("-inf")], "\ud800", {1: object()}, object()],
)
def test_what_json_cannot_hold_is_refused(made: Tool, value: Any) -> None:
    found = problems(made, {"items": [], "note": value})

    assert found == [("", "value", "a JSON object")]


@TOOLS
def test_endless_nesting_is_refused(made: Tool) -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ToolValidationError):
        made.validate({"items": deep})


@TOOLS
def test_words_like_nan_are_only_words(made: Tool) -> None:
    arguments = made.validate({"items": [{"count": 1, "name": "NaN Infinity"}]})

    assert arguments.json["items"] == [{"count": 1, "name": "NaN Infinity"}]


@pytest.mark.corpus
def test_any_string_passes_unchanged() -> None:
    @tool
    def echo(text: str) -> str:
        return text

    for text in naughty_strings():
        arguments = echo.validate({"text": text})
        assert arguments.values == {"text": text}
        assert arguments.json == {"text": text}


# --- canonical arguments -----------------------------------------------------------


def test_arguments_share_nothing_with_the_call() -> None:
    for made in (order, WRITTEN):
        given: Any = {"items": [{"count": 1, "name": ""}], "note": ["a"]}
        arguments = made.validate(given)
        given["note"].append("b")
        arguments.json["note"] = "changed"

        assert arguments.values["note"] == ["a"]


@pytest.mark.promise("RL-23")
def test_equal_calls_have_one_text_and_one_digest() -> None:
    """RL-23: order, spelling of numbers and sets do not matter; types do."""

    def f(a: float, b: set[str], c: Any = None) -> None: ...

    made = tool(f)
    first = made.validate({"a": 1, "b": ["y", "x"]})
    same = made.validate({"c": None, "b": ["x", "y", "x"], "a": 1.0})
    others = [
        made.validate({"a": 1, "b": ["x", "y"], "c": value}) for value in (1, True, "1")
    ]

    assert first.text == same.text == '{"a":1.0,"b":["x","y"],"c":null}'
    assert first.digest == same.digest
    assert len({first.digest, *(other.digest for other in others)}) == 4


def test_whole_numbers_of_json_schema_are_one_call() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    made = JSONSchemaTool(lambda arguments: arguments, name="n", parameters=schema)

    assert made.validate({"n": 2.0}).text == made.validate({"n": 2}).text == '{"n":2}'
    assert made.validate({"n": 1e300}).values == {"n": 1e300}


def test_a_context_is_not_an_argument() -> None:
    def f(a: int, context: ToolContext) -> str:
        return f"{a} {context.tool_name}"

    made = tool(f)
    assert problems(made, {"a": 1, "context": {}}) == [
        ("context", "unknown", "one of a")
    ]
    with pytest.raises(InvalidInputError, match="takes a ToolContext"):
        made.call(made.validate({"a": 1}))
