"""Fanning out, and what comes back."""

from __future__ import annotations

import operator
from typing import Any

import pytest

from toolcell.core import InvalidInputError
from toolcell.flow import (
    Send,
    SendBatch,
    SendResult,
    aggregate_send_results,
    scatter,
    send,
)
from toolcell.flow.spi import (
    broadcast,
    extract_send_results,
    is_send,
    is_send_list,
    normalize_sends,
)


def result(number: int, value: Any = None, *, success: bool = True) -> SendResult:
    return SendResult(
        send_id=f"s{number}",
        node="w",
        success=success,
        result=value,
        error=None if success else "it broke",
        error_kind=None if success else "flow.node",
        duration_ms=float(number),
    )


@pytest.mark.promise("LC-36", "RL-19", "flow-03")
def test_a_send_may_be_made_by_position() -> None:
    made = Send("worker", {"a": 1}, metadata={"by": "test"})

    assert (made.node, made.payload, made.metadata) == (
        "worker",
        {"a": 1},
        {"by": "test"},
    )
    assert made.send_id != Send("worker", {"a": 1}).send_id
    assert Send("w", send_id="mine").send_id == "mine"
    with pytest.raises(InvalidInputError):
        Send("w", {"a": float("nan")})
    with pytest.raises(InvalidInputError):
        Send("w", {"a": object()})


@pytest.mark.promise("LC-36")
def test_what_the_caller_keeps_does_not_change_a_send() -> None:
    payload: dict[str, Any] = {"a": [1]}
    made = Send("w", payload)
    payload["a"].append(2)

    assert made.payload == {"a": [1]}


@pytest.mark.promise("LC-39", "flow-03")
def test_send_takes_names_that_are_taken() -> None:
    assert send("w", a=1).payload == {"a": 1}
    assert send("w", {"node": 1}, a=2).payload == {"node": 1, "a": 2}


@pytest.mark.promise("LC-40", "flow-03")
def test_broadcast_gives_all_the_same() -> None:
    made = broadcast(["a", "b"], {"x": 1})

    assert [(each.node, each.payload) for each in made] == [
        ("a", {"x": 1}),
        ("b", {"x": 1}),
    ]
    assert len({each.send_id for each in made}) == 2
    assert broadcast([]) == []


@pytest.mark.promise("LC-41", "flow-03")
def test_scatter_numbers_its_items() -> None:
    made = scatter("w", ["x", "y"])

    assert [each.payload for each in made] == [
        {"item": "x", "index": 0, "total": 2},
        {"item": "y", "index": 1, "total": 2},
    ]
    plain = scatter("w", iter([1]), key="n", include_index=False)
    assert [each.payload for each in plain] == [{"n": 1}]
    with pytest.raises(InvalidInputError, match="taken"):
        scatter("w", [1], key="index")


@pytest.mark.promise("LC-37")
def test_a_batch_knows_its_targets() -> None:
    sends = [Send("a"), Send("b"), Send("a")]
    batch = SendBatch(sends=sends, source_node="s", aggregator_node="g")

    assert (batch.target_nodes, batch.count) == (["a", "b"], 3)
    assert batch.group_by_node() == {"a": [sends[0], sends[2]], "b": [sends[1]]}


@pytest.mark.promise("LC-42", "flow-04")
def test_sends_are_told_from_all_else() -> None:
    one = Send("w")

    assert is_send(one)
    assert not is_send("w")
    assert is_send_list([one])
    assert is_send_list([])
    assert not is_send_list([one, "w"])
    assert normalize_sends(one) == [one]
    assert normalize_sends([one]) == [one]
    assert normalize_sends([]) == []
    assert normalize_sends([one, 1]) is None
    assert normalize_sends({"a": one}) is None


@pytest.mark.promise("LC-38", "LC-43", "RL-19", "flow-05")
def test_results_are_taken_by_field_or_by_key() -> None:
    results = [result(1, {"x": 10}), result(2, {"x": 20})]

    assert extract_send_results(results) == {"s1": {"x": 10}, "s2": {"x": 20}}
    assert extract_send_results(results, "x") == {"s1": 10, "s2": 20}
    assert extract_send_results(results, "duration_ms") == {"s1": 1.0, "s2": 2.0}
    with pytest.raises(InvalidInputError, match="no key 'y'"):
        extract_send_results(results, "y")


@pytest.mark.promise("LC-43", "RL-19", "flow-05")
def test_failed_sends_are_never_dropped_silently() -> None:
    results = [result(1, 1), result(2, success=False)]

    with pytest.raises(InvalidInputError, match="1 of 2 sends failed: s2"):
        extract_send_results(results)
    assert extract_send_results(results, failures="include") == {"s1": 1, "s2": None}
    assert extract_send_results(results, failures="skip") == {"s1": 1}
    assert extract_send_results(results, "error_kind", failures="include") == {
        "s1": None,
        "s2": "flow.node",
    }


@pytest.mark.promise("LC-44", "flow-06")
def test_results_are_listed_or_folded() -> None:
    results = [result(n, n) for n in (1, 2, 3)]

    assert aggregate_send_results(results) == [1, 2, 3]
    assert aggregate_send_results(results, operator.add) == 6
    assert aggregate_send_results([]) == []
    assert aggregate_send_results([], operator.add) is None


@pytest.mark.promise("LC-44", "flow-06")
@pytest.mark.parametrize(("least", "enough"), [(2, True), (3, False), (0.5, True)])
def test_failures_are_an_error_unless_skipped(least: int | float, enough: bool) -> None:
    results = [result(1, 1), result(2, success=False), result(3, 3)]

    with pytest.raises(InvalidInputError) as caught:
        aggregate_send_results(results)
    assert caught.value.details == {"failed": ["s2"]}
    assert aggregate_send_results(results, on_failure="skip") == [1, 3]
    if enough:
        found = aggregate_send_results(results, on_failure="skip", min_success=least)
        assert found == [1, 3]
    else:
        with pytest.raises(InvalidInputError, match="2 of 3"):
            aggregate_send_results(results, on_failure="skip", min_success=least)


@pytest.mark.promise("LC-44", "flow-06")
def test_a_share_of_one_is_all_of_them() -> None:
    results = [result(1, 1), result(2, success=False)]

    with pytest.raises(InvalidInputError, match=r"1\.0 have to"):
        aggregate_send_results(results, on_failure="skip", min_success=1.0)
    assert aggregate_send_results(results, on_failure="skip", min_success=1) == [1]
