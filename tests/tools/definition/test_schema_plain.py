"""Schemas and arguments that must not depend on what else there is in the process."""

from __future__ import annotations

import datetime as dt
import enum
import json
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, AliasChoices, AliasPath, Field, PlainSerializer

from toolcell.core import ConfigError
from toolcell.tools import FunctionTool, ToolRegistry


class _Word(enum.StrEnum):
    LOUD = "LOUD"


@pytest.mark.parametrize(
    ("annotation", "default"),
    [
        (int, ...),
        (str | None, "x"),
        (bool, True),
        (str, _Word.LOUD),
        (_Word, _Word.LOUD),
        (dt.date, dt.date(2024, 1, 1)),
        (Annotated[int, PlainSerializer(lambda number: number * 2)], 7),
        (Annotated[int, Field(alias="other")], 7),
        (Annotated[str, AfterValidator(lambda text: _Word(text))], "LOUD"),
        (list[int], ...),
    ],
)
def test_what_a_guard_judges_is_plain_json(annotation: Any, default: Any) -> None:
    def function(value=default):  # type: ignore[no-untyped-def]
        return value

    function.__annotations__ = {"value": annotation}
    if default is ...:
        del function.__defaults__
    made = FunctionTool(function, name="t")
    given = {"value": [1] if annotation == list[int] else 7} if default is ... else {}
    checked = made.validate(given)
    schema: Any = made._schema

    assert checked.json == schema._adapter.serializer.to_python(
        checked.values, mode="json", by_alias=True, warnings=False
    )
    assert checked.json is not checked.values
    assert type(json.loads(json.dumps(checked.json))) is dict
    for value in checked.json.values():
        assert type(value) in (int, str, bool, list, type(None))


@pytest.mark.promise("A17")
@pytest.mark.parametrize(
    "field",
    [
        Field(serialization_alias="told"),
        Field(validation_alias="read"),
        Field(validation_alias=AliasChoices("read", "also")),
        Field(validation_alias=AliasPath("deep", 0), serialization_alias="deep"),
    ],
)
def test_a_name_that_a_rule_would_not_find_is_refused(field: Any) -> None:
    def function(value):  # type: ignore[no-untyped-def]
        return value

    function.__annotations__ = {"value": Annotated[str, field]}

    with pytest.raises(ConfigError, match="two names"):
        ToolRegistry([FunctionTool(function, name="t")])


@pytest.mark.parametrize(
    "shape", ["{}", "list[{}]", "dict[str, {}]", "tuple[{}]", "{} | None"]
)
def test_a_union_keeps_its_order_whatever_was_seen_before(shape: str) -> None:
    orders = [["int", "str"], ["str", "int"]] * 2
    for order in orders:
        annotation = shape.format(" | ".join(order))

        def function(value):  # type: ignore[no-untyped-def]
            return value

        function.__annotations__ = {"value": annotation}
        shown = json.dumps(FunctionTool(function, name="t").parameters["properties"])
        words = {"int": "integer", "str": "string"}
        places = [shown.index(f'"type": "{words[each]}"') for each in order]

        assert places == sorted(places)
