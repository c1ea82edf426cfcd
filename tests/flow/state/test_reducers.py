"""Reducers: how they are found, and the laws that they keep."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from toolcell.core import GraphError, Message, Role
from toolcell.flow import (
    REMOVE_ALL_MESSAGES,
    add_messages,
    add_numbers,
    append_list,
    deep_merge_dict,
    first_value,
    last_value,
    max_value,
    merge_dict,
    min_value,
    reducer,
    set_intersection,
    set_union,
    unique_append_list,
)
from toolcell.flow.spi import Reducer, apply_reducers, get_reducer


@reducer
def joined(current: str, update: str) -> str:
    return current + update


@reducer(update=list[int])
def total(current: int, update: Any) -> Any:
    return current + sum(update)


@pytest.mark.promise("LC-46", "flow-07")
def test_a_reducer_is_found_wherever_it_stands() -> None:
    assert get_reducer(Annotated[str, "text", joined]) is joined
    assert get_reducer(Annotated[str, joined, Field(max_length=9)]) is joined
    assert get_reducer(Annotated[str, Field(max_length=9)]) is None
    assert get_reducer(Annotated[str, int]) is None
    assert get_reducer(str) is None
    with pytest.raises(GraphError, match="2 reducers: joined, last_value"):
        get_reducer(Annotated[str, joined, last_value])


@pytest.mark.promise("LC-45")
def test_a_plain_function_is_a_reducer() -> None:
    def longest(current: str, update: str) -> str:
        return max(current, update, key=len)

    named: Reducer[str] = longest
    assert get_reducer(Annotated[str, named]) is longest


@pytest.mark.promise("LC-47", "flow-08")
def test_updates_are_reduced_or_replace() -> None:
    current, update = {"a": [1], "b": 1}, {"a": [2], "b": 2, "c": [3]}
    merged = apply_reducers(current, update, {"a": append_list, "c": append_list})

    assert merged == {"a": [1, 2], "b": 2, "c": [3]}
    assert (current, update) == ({"a": [1], "b": 1}, {"a": [2], "b": 2, "c": [3]})


def message(text: str, name: str | None = None) -> Message:
    return Message(role=Role.USER, content=text, id=name)


@pytest.mark.promise("LC-48", "RL-18")
def test_messages_are_appended_or_replaced_by_id() -> None:
    known = (message("a", "1"), message("b"))

    merged = add_messages(known, [message("A", "1"), message("c", "2")])
    assert [each.content for each in merged] == ["A", "b", "c"]
    assert isinstance(merged, tuple)
    assert add_messages(known, message("d"))[-1].content == "d"
    assert add_messages(known, REMOVE_ALL_MESSAGES) == ()
    left = add_messages(known, [message("x"), REMOVE_ALL_MESSAGES, message("y", "1")])
    assert [each.content for each in left] == ["y"]
    assert [each.content for each in known] == ["a", "b"]


ids = st.sampled_from([None, "1", "2"])
messages = st.builds(message, st.text(max_size=3), ids)
batches = st.lists(st.one_of(messages, st.just(REMOVE_ALL_MESSAGES)), max_size=4)


@pytest.mark.promise("LC-48")
@given(batches, batches, batches)
def test_messages_of_batches_are_those_of_one(
    first: list[Any], second: list[Any], third: list[Any]
) -> None:
    apart = add_messages(add_messages(add_messages((), first), second), third)

    assert apart == add_messages((), [*first, *second, *third])
    assert add_messages(apart, []) == apart


@pytest.mark.promise("LC-48")
@given(st.lists(messages, max_size=8))
def test_messages_are_those_of_a_dict_by_id(batch: list[Message]) -> None:
    by_id: dict[Any, str] = {}
    for place, each in enumerate(batch):
        by_id[place if each.id is None else each.id] = each.content

    merged = add_messages((), batch)
    assert [each.content for each in merged] == list(by_id.values())


small = st.dictionaries(st.sampled_from("ab"), st.integers(0, 3), max_size=2)
LAWS: list[tuple[Any, Any, str]] = [
    (append_list, st.lists(st.integers(0, 3), max_size=3), "a"),
    (unique_append_list, st.lists(st.integers(0, 3), max_size=3), "a"),
    (merge_dict, small, "ai"),
    (deep_merge_dict, st.dictionaries(st.sampled_from("ab"), small, max_size=2), "ai"),
    (add_numbers, st.integers(), "ac"),
    (add_numbers, st.decimals(-9, 9, places=2), "ac"),
    (max_value, st.integers(), "aci"),
    (min_value, st.integers(), "aci"),
    (last_value, st.integers(), "ai"),
    (first_value, st.integers(), "ai"),
    (set_union, st.frozensets(st.integers(0, 5)), "aci"),
    (set_intersection, st.frozensets(st.integers(0, 5)), "aci"),
]


@pytest.mark.promise("LC-48", "RL-18")
@pytest.mark.parametrize(("merge", "values", "laws"), LAWS)
def test_reducers_keep_their_laws(merge: Any, values: Any, laws: str) -> None:
    """`a`: associative, `c`: commutative, `i`: merging twice changes nothing."""

    @given(values, values, values)
    def law(x: Any, y: Any, z: Any) -> None:
        if "a" in laws:
            assert merge(merge(x, y), z) == merge(x, merge(y, z))
        if "c" in laws:
            assert merge(x, y) == merge(y, x)
        if "i" in laws:
            assert merge(merge(x, y), y) == merge(x, y)

    law()


@pytest.mark.promise("RL-18")
def test_unique_values_stand_where_they_first_were() -> None:
    once = unique_append_list((3, 1), [1, 2, 3])

    assert once == (3, 1, 2)
    assert unique_append_list(once, [1, 2, 3]) == once
    assert unique_append_list([{"a": 1}], [{"a": 1}, {"a": 2}]) == [{"a": 1}, {"a": 2}]
    assert unique_append_list([], [1, True, 1.0]) == [1, True, 1.0]


@pytest.mark.promise("RL-18")
def test_what_is_nested_is_merged() -> None:
    current = {"a": {"x": 1, "y": {"z": 1}}, "b": 1}

    merged = deep_merge_dict(current, {"a": {"y": {"w": 2}}, "b": {"c": 3}})
    assert merged == {"a": {"x": 1, "y": {"z": 1, "w": 2}}, "b": {"c": 3}}
    assert current == {"a": {"x": 1, "y": {"z": 1}}, "b": 1}


@pytest.mark.promise("RL-18")
def test_numbers_are_added() -> None:
    assert add_numbers(1, 2) == 3
    assert add_numbers(Decimal("0.1"), Decimal("0.2")) == Decimal("0.3")
    assert total(1, [2, 3]) == 6
