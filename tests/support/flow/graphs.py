"""States and short ways to graphs that the tests of flows share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel

from toolcell.core import InterruptDeniedError
from toolcell.flow import (
    END,
    START,
    Flow,
    FlowResult,
    Graph,
    add_numbers,
    append_list,
    interrupt,
)
from toolcell.flow.spi import InterruptValue


class Log(BaseModel):
    """A state that says what ran."""

    log: Annotated[tuple[str, ...], append_list] = ()
    total: Annotated[int, add_numbers] = 0
    note: str = ""
    items: list[Any] = []


def chain(*nodes: Callable[..., Any], **options: Any) -> Graph[Log]:
    """Return a graph whose nodes run one after the other."""
    graph = Graph(Log, name=options.pop("name", "chain"), **options)
    before = START
    for node in nodes:
        graph.node(node)
        graph.edge(before, node.__name__)
        before = node.__name__
    graph.edge(before, END)
    return graph


def flow(*nodes: Callable[..., Any], **options: Any) -> Flow[Log]:
    """Return a flow over a chain of nodes."""
    return Flow(chain(*nodes), **options)


def said(*names: str) -> dict[str, Any]:
    """Return an update that says what ran."""
    return {"log": names}


def ask() -> dict[str, Any]:
    """Ask how many, and say what was answered."""
    try:
        return said(str(interrupt({"question": "how many?"}, answer=int | bool)))
    except InterruptDeniedError as error:
        return said(f"{error.details['reason']}: {error.hint}")


def only(result: FlowResult[Any]) -> InterruptValue:
    """Return the one open question of a thread that is paused."""
    assert result.status == "interrupted", result.error
    [question] = result.interrupts
    return question
