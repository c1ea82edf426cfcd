"""One value has one writing, wherever a call is hashed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcell.core import ToolCall
from toolcell.core.text.canonical_json import canonical_digest, canonical_json
from toolcell.tools import JSONSchemaTool
from toolcell.tools.stores.idempotency import CallBody

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
).filter(lambda value: "Infinity" not in json.dumps(value))


def take(arguments: dict[str, Any]) -> None: ...


def turned(value: Any) -> Any:
    """Return an equal value whose keys stand in the other order."""
    if isinstance(value, list):
        return [turned(each) for each in value]
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return value


@given(VALUES)
def test_the_order_of_keys_does_not_count(value: Any) -> None:
    assert canonical_json(turned(value)) == canonical_json(value)
    assert canonical_digest(turned(value)) == canonical_digest(value)


@given(VALUES)
def test_nothing_is_lost(value: Any) -> None:
    text = canonical_json(value)

    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text


@given(VALUES, VALUES)
def test_different_values_are_written_differently(first: Any, second: Any) -> None:
    same = json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)

    assert (canonical_json(first) == canonical_json(second)) is same


@given(st.dictionaries(TEXT, VALUES))
def test_a_call_is_written_in_one_way_everywhere(arguments: Mapping[str, Any]) -> None:
    call = ToolCall(id="1", name="any", arguments=dict(arguments))
    tool = JSONSchemaTool(take, name="any", parameters={"type": "object"})
    written = canonical_json(call.arguments).decode()

    assert CallBody("any", call.arguments).text == f"any/{written}"
    whole = tool.validate(call.arguments)
    # For a schema 2.0 is 2.
    assert whole.text == canonical_json(whole.json).decode()


@pytest.mark.parametrize(
    "value", [float("nan"), [float("inf")], {"k": "\ud800"}, "\udfff"]
)
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(ValueError):
        canonical_json(value)


def test_objects_are_refused() -> None:
    with pytest.raises(TypeError):
        canonical_json({"k": object()})


def test_the_bytes_stay_as_they_are() -> None:
    """Approvals and pins are bound to them."""
    value = {"b": [1, 1.0, 1e-7, 1e22, True, None], "a": 'ä"\u2028\x7f\n', "": {}}

    assert canonical_json(value) == (
        '{"":{},"a":"ä\\"\u2028\x7f\\n","b":[1,1.0,1e-07,1e+22,true,null]}'.encode()
    )
