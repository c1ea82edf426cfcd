"""For any annotation, the schema that a model sees and what passes are the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from toolcell.core import ToolValidationError
from toolcell.tools import FunctionTool, JSONSchemaTool


class Leaf(BaseModel):
    x: int
    y: str | None = None


SCALARS: list[Any] = [int, str, bool, float, None, Any, Leaf]
LITERALS: list[Any] = [Literal["a"], Literal[1, "1"], Literal[True, "b"], Literal[0]]


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda each: list[each]),  # type: ignore[valid-type]
        inner.map(lambda each: dict[str, each]),  # type: ignore[valid-type]
        st.tuples(inner, inner).map(lambda both: tuple[both]),  # type: ignore[valid-type]
        st.tuples(inner, inner).map(lambda both: Union[both]),  # noqa: UP007
        inner.map(lambda each: each | None if each is not None else each),
    )


ANNOTATIONS = st.recursive(
    st.sampled_from(SCALARS + LITERALS), containers, max_leaves=5
)
# Whole floats are integers to JSON Schema, and floats to strict validation.
NUMBERS = st.one_of(
    st.integers(-2, 2),
    st.floats(allow_nan=False, allow_infinity=False).filter(lambda n: n % 1 != 0),
)
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), NUMBERS, st.sampled_from(["a", "b", "1", "", "x"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["x", "y", "z"]), inner, max_size=3),
    ),
    max_leaves=6,
)


def passes(subject: FunctionTool[..., Any] | JSONSchemaTool, value: Any) -> bool:
    try:
        subject.validate({"value": value})
    except ToolValidationError as error:
        assert error.details["problems"]
        return False
    return True


@pytest.mark.promise("LT-45", "GA-22")
@settings(max_examples=150, derandomize=True)
@given(ANNOTATIONS, st.lists(VALUES, min_size=5, max_size=20))
def test_the_schema_is_the_verdict(annotation: Any, values: list[Any]) -> None:
    def function(value):  # type: ignore[no-untyped-def]
        return value

    function.__annotations__ = {"value": annotation}
    made = FunctionTool(function, name="t")
    Draft202012Validator.check_schema(made.parameters)
    validator = Draft202012Validator(made.parameters)
    written = JSONSchemaTool(lambda given: given, name="w", parameters=made.parameters)
    for value in values:
        verdict = validator.is_valid({"value": value})
        assert passes(made, value) is verdict, (annotation, value)
        assert passes(written, value) is verdict, (annotation, value)


@pytest.mark.promise("RL-23")
@settings(max_examples=150, derandomize=True)
@given(st.dictionaries(st.sampled_from("abc"), VALUES))
def test_canonical_text_ignores_order_only(values: Mapping[str, Any]) -> None:
    schema = {"type": "object"}
    made = JSONSchemaTool(lambda given: given, name="t", parameters=schema)
    backwards = dict(reversed(list(values.items())))

    first = made.validate(values)
    assert first.text == made.validate(backwards).text
    assert first.json == values
    assert first.text != made.validate({**values, "d": None}).text
