"""toolcell's side of the row on resuming: pauses a thread, or resumes it and ends.

Run with `pause FILE` or `resume FILE`, each in its own process.
"""

from __future__ import annotations

import sys
from typing import Any

import anyio
from pydantic import BaseModel

from toolcell.flow import END, START, Flow, Graph, SQLiteCheckpointer, interrupt


class _Asked(BaseModel):
    answer: str = ""


def _ask(state: _Asked) -> dict[str, Any]:
    return {"answer": interrupt("go on?")}


async def _main(work: str, file: str) -> None:
    graph = Graph(_Asked, name="paused")
    graph.node(_ask, name="ask")
    graph.edge(START, "ask").edge("ask", END)
    async with SQLiteCheckpointer(file) as store:
        flow = Flow(graph, checkpointer=store)
        if work == "pause":
            await flow.run({}, "t")
            return
        [question] = await flow.interrupts("t")
        answers = {question.interrupt.interrupt_id: "yes"}
        done = await flow.resume("t", answers)
        assert done.unwrap().answer == "yes"


anyio.run(_main, sys.argv[1], sys.argv[2])
