"""Patches of JSON: exact, small, and refused where they do not fit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcell.flow.state.patch import apply, diff, join, split

scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=4)
values = st.recursive(
    scalars | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(values, values)
def test_a_patch_makes_one_value_another(old: Any, new: Any) -> None:
    before, after = split(old), split(new)
    patch = diff(before, after)

    if patch is None:
        assert before == after
    else:
        assert apply(before, json.loads(patch)) == after
    assert json.loads(join(after)) == json.loads(json.dumps(new))


@given(values)
def test_nothing_lies_between_a_value_and_itself(value: Any) -> None:
    assert diff(split(value), split(value)) is None


@given(st.lists(values, min_size=2, max_size=20))
def test_a_chain_of_patches_is_its_last_value(chain: list[Any]) -> None:
    pieces = split(chain[0])
    for new in chain[1:]:
        patch = diff(pieces, split(new))
        if patch is not None:
            pieces = apply(pieces, json.loads(patch))

    assert pieces == split(chain[-1])


def test_values_that_python_calls_equal_are_not_the_same() -> None:
    assert diff(split([1]), split([True])) == b'["=",[true]]'
    assert diff(split(1), split(1.0)) == b'["=",1.0]'


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ([1, 2], [1, 2, 3], ["+", 2, [3]]),
        ([1, 2], [1, 4], ["+", 1, [4]]),
        ([1, 2], [1], ["+", 1, []]),
        ({"a": 1, "b": 2}, {"a": 1, "c": 3}, ["~", {"c": 3}, ["b"]]),
        ({"a": 1}, {"b": 2}, ["=", {"b": 2}]),
        ("a", "b", ["=", "b"]),
        ([1], {"a": 1}, ["=", {"a": 1}]),
    ],
)
def test_a_patch_says_what_changed(old: Any, new: Any, patch: Any) -> None:
    made = diff(split(old), split(new))

    assert made is not None
    assert json.loads(made) == patch


@pytest.mark.parametrize(
    "patch",
    [
        ["+", 3, []],
        ["+", -1, []],
        ["+", "1", []],
        ["~", {}, []],
        ["?", 1],
        ["="],
        {"=": 1},
        None,
        [],
    ],
)
def test_a_patch_that_does_not_fit_is_refused(patch: Any) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        apply(split([1, 2]), patch)


def test_a_key_that_is_not_there_cannot_go() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        apply(split({"a": 1}), ["~", {}, ["b"]])
