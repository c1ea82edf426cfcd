"""What a graph is, and what is wrong with one."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from toolcell.core import GraphError
from toolcell.flow import (
    END,
    START,
    Flow,
    Graph,
    NodeContext,
    Send,
    SendResult,
    add_numbers,
    append_list,
    last_value,
)

from ...support.flow.graphs import Log, chain, said


def a(state: Log) -> dict[str, Any]:
    return said("a")


async def b(state: Log) -> dict[str, Any]:
    return said("b")


def needs(state: Log, path: str) -> None: ...


def problems(graph: Graph[Any]) -> list[str]:
    with pytest.raises(GraphError) as caught:
        graph.check()
    found: list[str] = caught.value.details["problems"]
    return found


@pytest.mark.promise("flow-09")
def test_all_that_is_wrong_is_told_at_once() -> None:
    graph = Graph(Log, name="wrong")
    for node in (a, b, needs):
        graph.node(node)
    graph.edge("a", "nowhere").edge("ghost", "b").edge("a", "needs")
    graph.edge(["a", "b"], "b").route("b", lambda state: "x", ["x"])

    assert problems(graph) == [
        "no way leads from START",
        "a leads to 'nowhere', which is no node",
        "a way leads from 'ghost', which is no node",
        "b leads to 'x', which is no node",
        "a leads to needs, which needs path",
        "b waits for itself",
    ]
    with pytest.raises(GraphError):
        Flow(graph)


def test_a_good_graph_has_no_problem() -> None:
    chain(a, b).check()


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "__end__", "ä"])
def test_names_are_plain(name: str) -> None:
    with pytest.raises(GraphError, match="no name of a graph"):
        Graph(Log, name=name)
    with pytest.raises(GraphError, match="no name of a node"):
        Graph(Log, name="g").node(a, name=name or "-" * 65)


def test_a_node_is_added_once_with_bounds_that_can_be() -> None:
    graph = chain(a)

    with pytest.raises(GraphError, match="two nodes 'a'"):
        graph.node(a)
    with pytest.raises(GraphError, match="at least 1"):
        graph.node(max_concurrency=0)(b)
    with pytest.raises(GraphError, match="above 0"):
        graph.node(timeout=0)(b)
    with pytest.raises(GraphError, match="two routes"):
        graph.route("a", str, []).route("a", str, [])


def test_a_node_says_what_it_takes_by_type() -> None:
    graph = Graph(Log, name="g")

    @graph.node
    def every(
        state: Log,
        ctx: NodeContext,
        one: Send,
        results: list[SendResult],
        path: str,
        count: int = 1,
        **rest: Any,
    ) -> None: ...

    signature = graph.nodes["every"].signature
    assert signature.described() == [
        ["state", "state"],
        ["ctx", "context"],
        ["one", "send"],
        ["results", "results"],
        ["path", "argument"],
        ["count", "argument"],
        ["rest", "rest"],
    ]
    assert signature.arguments == ["path"]
    assert signature.takes_results
    graph.node(partial(needs, path="x"), name="settled")
    assert graph.nodes["settled"].signature.described()[0] == ["state", "state"]


def test_a_node_that_cannot_be_called_is_refused() -> None:
    graph = Graph(Log, name="g")

    with pytest.raises(GraphError, match=r"\*args cannot be filled"):
        graph.node(lambda *args: None, name="x")
    with pytest.raises(GraphError, match="cannot be stored as JSON"):

        @graph.node
        def odd(state: Log, lock: object) -> None: ...

        graph.node(_with_a_graph)


def _with_a_graph(state: Log, graph: Graph[Log]) -> None: ...


@pytest.mark.promise("flow-09")
def test_a_state_has_to_be_a_model_of_json() -> None:
    class Open(BaseModel):
        model_config = {"arbitrary_types_allowed": True}
        graph: Graph[Any]

    class Two(BaseModel):
        n: Annotated[int, add_numbers, last_value] = 0

    with pytest.raises(GraphError, match="pydantic model"):
        Graph(dict, name="g")  # type: ignore[type-var]
    with pytest.raises(GraphError, match="'graph' of Open cannot be stored"):
        Graph(Open, name="g")
    with pytest.raises(GraphError, match="2 reducers"):
        Graph(Two, name="g")


def test_the_shape_changes_with_ways_and_types_and_not_with_code() -> None:
    class Other(BaseModel):
        log: Annotated[tuple[str, ...], append_list] = ()

    def a_again(state: Log) -> None:
        raise ValueError

    same = Graph(Log, name="chain")
    same.node(a_again, name="a")
    same.edge(START, "a").edge("a", END)

    assert chain(a).shape == chain(a).shape == same.shape
    assert chain(a).shape != chain(a, b).shape
    assert chain(a).shape != Graph(Other, name="chain").shape
    assert len(chain(a).shape) == 16


def test_a_graph_can_be_drawn() -> None:
    graph = chain(a, b).route("b", lambda state: None, ["a"])

    text = graph.edge(["a", "b"], END).to_mermaid()
    assert text.splitlines()[0] == "flowchart TD"
    assert "    a --> b" in text
    assert "    b -.-> a" in text
