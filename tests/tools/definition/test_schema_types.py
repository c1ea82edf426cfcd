"""Annotations: the schema that a model sees, and what then passes.

Each row holds an annotation, its schema, arguments that pass with the values they
become, and arguments that do not.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import uuid
from collections.abc import Generator, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Optional, Union

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from typing_extensions import TypedDict

from toolcell.core import ConfigError, ToolValidationError
from toolcell.tools import FunctionTool, Tool, tool

pytestmark = pytest.mark.promise(
    "A-07 A-20 GA-06 GA-07 GA-08 GA-09 GA-11 GA-20 GA-21 GA-23 LT-45 LT-46 LT-49 "
    "LT-50 LT-51 OR-06 OR-07 OR-08 OR-09 OR-10 OR-11 OR-13 RA-02 RA-10 RL-06 "
    "RL-07 RL-09 RL-23 RO-05 X-01 X-06"
)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = 0


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


class Half(BaseModel):
    x: int = Field(exclude=True)


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int


@dataclasses.dataclass
class Size:
    width: int
    height: int = 1


class Address(TypedDict):
    street: str
    city: NotRequired[str]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


INT, STR = {"type": "integer"}, {"type": "string"}
NULL = {"type": "null"}
ID = uuid.UUID(int=1)
ISO_DATE = {"format": "date", "type": "string"}
Pet = Annotated[Cat | Dog, Field(discriminator="kind")]

# annotation, schema of the parameter, passing JSON with its value, refused JSON
MATRIX: list[tuple[Any, dict[str, Any], list[tuple[Any, Any]], list[Any]]] = [
    (str, STR, [("a", "a")], [1, None, True, ["a"]]),
    (int, INT, [(1, 1), (2**70, 2**70)], ["2", 2.5, 2.0, True, None]),
    (float, {"type": "number"}, [(1, 1.0), (1.5, 1.5)], ["1", True, None]),
    (bool, {"type": "boolean"}, [(True, True)], [1, "true", 0]),
    (None, NULL, [(None, None)], [0, ""]),
    (Any, {}, [(1, 1), ({"a": [None]}, {"a": [None]})], []),
    (list, {"items": {}, "type": "array"}, [([1, "a"], [1, "a"])], ["a", {}]),
    (list[int], {"items": INT, "type": "array"}, [([1], [1])], [["1"], [None], 1]),
    (list[str | None], {}, [(["a", None], ["a", None])], [[1]]),
    (Sequence[int], {"items": INT, "type": "array"}, [([1], [1])], [["1"]]),
    (dict, {"additionalProperties": True, "type": "object"}, [({}, {})], [[]]),
    (
        dict[str, int],
        {"additionalProperties": INT, "type": "object"},
        [({"a": 1}, {"a": 1})],
        [{"a": "1"}, []],
    ),
    (Mapping[str, bool], {}, [({"a": True}, {"a": True})], [{"a": 1}]),
    (dict[int, str], {}, [({"1": "a"}, {1: "a"})], [{"x": "a"}]),
    (
        set[str],
        {"items": STR, "type": "array", "uniqueItems": True},
        [(["a", "b"], {"a", "b"})],
        [[1], "a"],
    ),
    (frozenset[int], {}, [([1], frozenset({1}))], [["1"]]),
    (tuple[int, ...], {"items": INT, "type": "array"}, [([1, 2], (1, 2))], [["1"]]),
    (
        tuple[int, str],
        {"maxItems": 2, "minItems": 2, "prefixItems": [INT, STR], "type": "array"},
        [([1, "a"], (1, "a"))],
        [[1], [1, 2], [1, "a", 3]],
    ),
    (int | str, {"anyOf": [INT, STR]}, [(1, 1), ("1", "1")], [True, None, 1.5]),
    (Union[int, str], {"anyOf": [INT, STR]}, [("1", "1")], [None]),  # noqa: UP007
    (int | None, {"anyOf": [INT, NULL]}, [(None, None), (1, 1)], ["1"]),
    (Optional[int], {"anyOf": [INT, NULL]}, [(None, None)], ["1"]),  # noqa: UP045
    (
        Literal["a", 1],
        {"enum": ["a", 1]},
        [("a", "a"), (1, 1)],
        ["b", "1", True],
    ),
    (Literal[True], {"const": True, "type": "boolean"}, [(True, True)], [1, 1.0]),
    (Literal["only"], {"const": "only", "type": "string"}, [("only", "only")], ["x"]),
    (Colour, {"$ref": "#/$defs/Colour"}, [("red", Colour.RED)], ["RED", "green", 1]),
    (
        Annotated[int, Field(ge=1, le=3, multiple_of=1)],
        {"maximum": 3, "minimum": 1, "multipleOf": 1, "type": "integer"},
        [(1, 1), (3, 3)],
        [0, 4],
    ),
    (
        Annotated[str, Field(pattern="^a+$", max_length=3)],
        {"maxLength": 3, "pattern": "^a+$", "type": "string"},
        [("aa", "aa")],
        ["b", "aaaa"],
    ),
    (
        Annotated[list[int], Field(min_length=1, max_length=2)],
        {"items": INT, "maxItems": 2, "minItems": 1, "type": "array"},
        [([1], [1])],
        [[], [1, 2, 3]],
    ),
    (
        Annotated[int, Field(description="Said here.")],
        {"description": "Said here.", "type": "integer"},
        [(1, 1)],
        [],
    ),
    (dt.date, ISO_DATE, [("2024-02-29", dt.date(2024, 2, 29))], ["2024-02-30", 1, ""]),
    (
        dt.datetime,
        {"format": "date-time", "type": "string"},
        [("2024-01-01T00:00:00Z", dt.datetime(2024, 1, 1, tzinfo=dt.UTC))],
        ["yesterday"],
    ),
    (dt.time, {"format": "time", "type": "string"}, [("10:00", dt.time(10))], ["x"]),
    (
        dt.timedelta,
        {"format": "duration", "type": "string"},
        [("P1D", dt.timedelta(1))],
        ["x"],
    ),
    (
        bytes,
        {"contentEncoding": "base64", "type": "string"},
        [("/wA=", b"\xff\x00")],
        ["!", 1],
    ),
    (uuid.UUID, {"format": "uuid", "type": "string"}, [(str(ID), ID)], ["1"]),
    (Decimal, {}, [("1.50", Decimal("1.50"))], ["x", True]),
    (Path, {"format": "path", "type": "string"}, [("a/b", Path("a/b"))], [1]),
    (Point, {"$ref": "#/$defs/Point"}, [({"x": 1}, Point(x=1))], [{"x": 1, "k": 1}]),
    (
        Tree,
        {"$ref": "#/$defs/Tree"},
        [
            (
                {"value": 1, "children": [{"value": 2}]},
                Tree(value=1, children=[Tree(value=2)]),
            )
        ],
        [{"value": 1, "children": [{}]}, {"value": 1, "children": [{"k": 1}]}],
    ),
    (Open, {}, [({"x": 1}, Open(x=1))], [{"x": 1, "more": 2}]),
    (Size, {"$ref": "#/$defs/Size"}, [({"width": 1}, Size(1))], [{"width": 1, "k": 1}]),
    (
        Address,
        {"$ref": "#/$defs/Address"},
        [({"street": "a"}, {"street": "a"})],
        [{}, {"street": "a", "k": 1}],
    ),
    (
        Pet,
        {},
        [({"kind": "cat", "lives": 9}, Cat(kind="cat", lives=9))],
        [{"kind": "cow"}, {"kind": "dog", "lives": 9}, {}],
    ),
    (list[Point | Size], {}, [([{"width": 1}], [Size(1)])], [[{}]]),
]  # fmt: skip


def with_parameter(annotation: Any, **options: Any) -> Tool:
    def function(value):  # type: ignore[no-untyped-def]
        return value

    function.__annotations__ = {"value": annotation}
    return FunctionTool(function, name="t", **options)


def ids() -> list[str]:
    return [str(getattr(row[0], "__name__", row[0])) for row in MATRIX]


@pytest.mark.parametrize(("annotation", "schema", "good", "bad"), MATRIX, ids=ids())
def test_annotations_are_lossless(
    annotation: Any, schema: dict[str, Any], good: list[Any], bad: list[Any]
) -> None:
    """LT-45, GA-06, GA-07, GA-20, GA-21, GA-23, OR-06..OR-10, A-07, A-20, X-01.

    Also OR-07, OR-08, OR-09, RL-06, RL-07, RA-02 and RO-05, row by row.
    """
    made = with_parameter(annotation)
    shown = made.parameters["properties"]["value"]

    Draft202012Validator.check_schema(made.parameters)
    assert made.parameters["additionalProperties"] is False
    assert shown == schema if schema or annotation is Any else shown
    for given, value in good:
        checked = made.validate({"value": given})
        assert checked.values == {"value": value}
        assert type(checked.values["value"]) is type(value)
        # What is canonical is JSON, and the same call again.
        again = made.validate(json.loads(checked.text))
        assert again.text == checked.text
        Draft202012Validator(made.parameters).validate(checked.json)
    for given in bad:
        with pytest.raises(ToolValidationError):
            made.validate({"value": given})


@pytest.mark.parametrize(
    ("annotation", "given", "value"),
    [(int, "2", 2), (int, 2.0, 2), (float, "1.5", 1.5), (bool, "true", True)],
)
def test_a_lenient_tool_converts(annotation: Any, given: Any, value: Any) -> None:
    made = with_parameter(annotation, strict=False)

    assert made.validate({"value": given, "more": 1}).values == {"value": value}
    with pytest.raises(ToolValidationError):
        with_parameter(annotation).validate({"value": given})


def test_a_lenient_schema_says_so() -> None:
    made = with_parameter(Point, strict=False)

    assert "additionalProperties" not in made.parameters
    assert "additionalProperties" not in made.parameters["$defs"]["Point"]
    closed = with_parameter(Point).parameters
    assert closed["$defs"]["Point"]["additionalProperties"] is False


def test_definitions_stand_at_the_top() -> None:
    parameters = with_parameter(list[Tree]).parameters

    assert set(parameters["$defs"]) == {"Tree"}
    assert parameters["properties"]["value"]["items"] == {"$ref": "#/$defs/Tree"}


# --- defaults ----------------------------------------------------------------------


def test_defaults_are_shown_and_filled_in() -> None:
    """LT-50, OR-11, OR-13, X-06, GA-09: a default is emitted and not required."""

    @tool
    def book(
        city: str,
        nights: int = 1,
        day: dt.date = dt.date(2024, 1, 1),
        colours: set[str] = frozenset(["b", "a"]),  # type: ignore[assignment]
        note: str | None = None,
        late: bool = False,
        room: int = Field(7, ge=1),
        tags: list[str] = Field(default_factory=list),  # noqa: B008
    ) -> None:
        """Book."""

    parameters = book.parameters
    defaults = {
        name: schema["default"]
        for name, schema in parameters["properties"].items()
        if "default" in schema
    }
    arguments = book.validate({"city": "Rome"})

    assert parameters["required"] == ["city"]
    assert defaults["day"] == "2024-01-01"
    assert sorted(defaults.pop("colours")) == ["a", "b"]
    assert defaults == {
        "nights": 1,
        "day": "2024-01-01",
        "note": None,
        "late": False,
        "room": 7,
    }
    assert arguments.values["day"] == dt.date(2024, 1, 1)
    assert arguments.json == {
        "city": "Rome",
        "nights": 1,
        "day": "2024-01-01",
        "colours": ["a", "b"],
        "note": None,
        "late": False,
        "room": 7,
        "tags": [],
    }


def test_omitted_and_explicit_defaults_are_the_same_call() -> None:
    def f(a: int, b: float = 1) -> None: ...

    made = tool(f)
    texts = {
        made.validate(each).text
        for each in ({"a": 1}, {"b": 1, "a": 1}, {"a": 1, "b": 1.0})
    }
    assert len(texts) == 1


def test_none_as_default_allows_null() -> None:
    def f(a: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    made = tool(f)

    assert made.parameters["properties"]["a"]["anyOf"] == [INT, NULL]
    assert made.validate({"a": None}).values == {"a": None}


def test_a_default_that_equals_everything_is_optional() -> None:
    class Always(BaseModel):
        x: int = 1

        def __eq__(self, other: object) -> bool:
            return True

    def f(a: Always = Always()) -> None: ...  # noqa: B008

    assert "required" not in tool(f).parameters


@pytest.mark.parametrize("default", [object(), 3j, "x", {1: object()}, float("nan")])
def test_a_default_that_does_not_fit_is_refused(default: Any) -> None:
    def f(a: int = default) -> None: ...

    with pytest.raises(ConfigError, match="default"):
        tool(f).check_definition()


# --- names, and annotations that come later -------------------------------------------


def test_any_parameter_name_works() -> None:
    """LT-49, RL-09: only types are special, never names."""

    def f(
        context: str, ctx: int, json: int, schema: int, model_config: int
    ) -> None: ...

    def g(copy: int, validate: int, _private: int = 1, self_: int = 2) -> None: ...

    assert tool(f).parameters["required"] == list(f.__annotations__)[:-1]
    assert tool(g).validate({"copy": 1, "validate": 2}).values["_private"] == 1


def test_an_alias_is_the_name_that_the_model_sees() -> None:
    def f(from_: Annotated[str, Field(alias="from")]) -> str:
        return from_

    made = tool(f)
    arguments = made.validate({"from": "a"})

    assert list(made.parameters["properties"]) == ["from"]
    assert (made.call(arguments), arguments.json) == ("a", {"from": "a"})


def test_forward_references_are_resolved_late() -> None:
    scope: dict[str, Any] = {"tool": tool, "__name__": "later"}
    exec("@tool\ndef f(a: 'list[Later]') -> 'Never': ...", scope)
    made = scope["f"]
    with pytest.raises(ConfigError, match="names Later, which is not defined"):
        made.check_definition()

    class Later(BaseModel):
        x: int

    scope["Later"] = Later
    made.check_definition()
    assert made.validate({"a": [{"x": 1}]}).values == {"a": [Later(x=1)]}


def test_names_of_the_function_around_are_found() -> None:
    class Local(BaseModel):
        x: int

    @tool
    def f(a: Local) -> int:
        return a.x

    assert f.call(f.validate({"a": {"x": 1}})) == 1


def test_local_names_reach_methods_and_subclasses_too() -> None:
    class Local(BaseModel):
        x: int

    class Shop:
        @tool
        def sell(self, a: list[Local]) -> int:
            return a[0].x

    class Seller(Tool):
        name = "seller"

        def execute(self, a: Local | None) -> int:
            return a.x if a else 0

    sell, seller = Shop().sell, Seller()
    assert sell.call(sell.validate({"a": [{"x": 1}]})) == 1
    assert seller.call(seller.validate({"a": {"x": 2}})) == 2


def test_names_of_a_caller_are_not_taken_for_local_ones() -> None:
    def define() -> Tool:
        @tool
        def f(a: Stranger) -> None: ...  # type: ignore[name-defined]  # noqa: F821

        return f

    def with_a_name() -> Tool:
        Stranger = int  # noqa: F841
        return define()

    with pytest.raises(ConfigError, match="names Stranger, which is not defined"):
        with_a_name().check_definition()


def test_an_undefined_name_inside_a_model_is_told() -> None:
    class Lacking(BaseModel):
        other: Missing  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigError, match="names Missing, which is not defined"):
        with_parameter(Lacking).check_definition()


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (object(), "without a JSON Schema|cannot be read"),
        (type("Thing", (), {}), "without a JSON Schema"),
        (complex | type("Thing", (), {}), "without a JSON Schema"),
        ("[", "cannot be read"),
        (SecretStr, "takes a secret from the model"),
        (set[Size], "set of objects"),
        (Half, "excluded from JSON"),
        pytest.param(Iterable[int], "an iterator", marks=pytest.mark.promise("T2")),
        pytest.param(
            list[Generator[int, None, None]],
            "an iterator",
            marks=pytest.mark.promise("T2"),
        ),
    ],
)
def test_what_json_cannot_carry_is_refused(annotation: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        with_parameter(annotation).check_definition()


def test_a_schema_is_valid_by_the_meta_schema() -> None:
    """The whole matrix in one signature; see also the test of each row."""

    def function(**values):  # type: ignore[no-untyped-def]
        return values

    def many(a, b, c, d):  # type: ignore[no-untyped-def]
        return a

    many.__annotations__ = {"a": Tree, "b": Pet, "c": dict[str, Size], "d": Any}
    schema = tool(many).parameters
    Draft202012Validator.check_schema(schema)
    assert schema["required"] == ["a", "b", "c", "d"]
