"""langgraph's side of the rows on flows, in its own environment.

Reads the name of a piece of work from each line of its input, does it, and prints the
milliseconds of CPU time that it took; of `messages` the megabytes of the file. Run with
`pause FILE` or `resume FILE` it does only that. Written for langgraph 1.2 and
langgraph-checkpoint-sqlite 3.
"""

from __future__ import annotations

import asyncio
import operator
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

STEPS = 200
SENDS = 1_000
MESSAGES = 1_000


class _Count(TypedDict):
    n: int


class _Items(TypedDict):
    items: Annotated[list[int], operator.add]


class _Messages(TypedDict):
    messages: Annotated[list[str], operator.add]


class _Asked(TypedDict):
    answer: str


async def _add(state: _Count) -> Command[Any]:
    target = "add" if state["n"] < STEPS - 1 else END
    return Command(goto=target, update={"n": state["n"] + 1})


async def _say(state: _Messages) -> Command[Any]:
    count = len(state["messages"])
    target = "say" if count < MESSAGES - 1 else END
    return Command(goto=target, update={"messages": [f"{count:1000}"]})


async def _ask(state: _Asked) -> dict[str, Any]:
    return {"answer": interrupt("go on?")}


async def _split(state: _Items) -> dict[str, Any]:
    return {}


async def _worker(state: dict[str, Any]) -> dict[str, Any]:
    return {"items": [state["item"]]}


def _steps(saver: Any) -> Any:
    graph = StateGraph(_Count)
    graph.add_node("add", _add, destinations=("add", END))
    graph.add_edge(START, "add")
    return graph.compile(checkpointer=saver)


def _fan_out(saver: Any) -> Any:
    graph = StateGraph(_Items)
    graph.add_node("split", _split)
    graph.add_node("worker", _worker)
    graph.add_edge(START, "split")
    sends = [Send("worker", {"item": item}) for item in range(SENDS)]
    graph.add_conditional_edges("split", lambda _: sends, ["worker"])
    graph.add_edge("worker", END)
    return graph.compile(checkpointer=saver)


async def _timed(graph: Any, value: Any) -> tuple[float, Any]:
    config = {"configurable": {"thread_id": uuid.uuid4().hex}, "recursion_limit": 9_999}
    started = time.process_time()
    state = await graph.ainvoke(value, config, durability="sync")
    return (time.process_time() - started) * 1_000, state


async def _size_of_messages() -> float:
    """Return the megabytes of a file that has one long conversation."""
    graph = StateGraph(_Messages)
    graph.add_node("say", _say, destinations=("say", END))
    graph.add_edge(START, "say")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "langgraph.db")
        async with AsyncSqliteSaver.from_conn_string(str(file)) as saver:
            _, state = await _timed(graph.compile(checkpointer=saver), {"messages": []})
        assert len(state["messages"]) == MESSAGES
        return sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6


async def _paused(work: str, file: str) -> None:
    graph = StateGraph(_Asked)
    graph.add_node("ask", _ask)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", END)
    config: Any = {"configurable": {"thread_id": "t"}}
    async with AsyncSqliteSaver.from_conn_string(file) as saver:
        compiled = graph.compile(checkpointer=saver)
        given: Any = {"answer": ""} if work == "pause" else Command(resume="yes")
        state = await compiled.ainvoke(given, config, durability="sync")
    assert work == "pause" or state["answer"] == "yes"


async def _main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "langgraph.db"))
        async with AsyncSqliteSaver.from_conn_string(file) as saver:
            works = {
                "step-memory": (_steps(InMemorySaver()), {"n": 0}),
                "step-sqlite": (_steps(saver), {"n": 0}),
                "fan-out": (_fan_out(saver), {"items": []}),
            }
            for line in sys.stdin:
                if line.strip() == "messages":
                    print(await _size_of_messages(), flush=True)
                    continue
                took, state = await _timed(*works[line.strip()])
                assert state.get("n", STEPS) == STEPS, state
                assert len(state.get("items", range(SENDS))) == SENDS
                print(took, flush=True)


asyncio.run(_paused(*sys.argv[1:]) if sys.argv[1:] else _main())
