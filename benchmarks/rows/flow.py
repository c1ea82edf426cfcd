"""Rows on flows: steps, a fan-out and a list of threads, against langgraph.

langgraph runs in an environment of its own, whose Python `TOOLCELL_LANGGRAPH_PYTHON`
names. Both sides tell the CPU time of their processes.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from harness.measure import (
    Contender,
    Missing,
    Row,
    WrongResult,
    against,
    take_turns,
)
from pydantic import BaseModel

from toolcell.flow import (
    END,
    START,
    Checkpointer,
    Command,
    Flow,
    Graph,
    MemoryCheckpointer,
    SQLiteCheckpointer,
    append_list,
    goto,
    interrupt,
    scatter,
)

if TYPE_CHECKING:
    from rows.runs import Options

_PYTHON = "TOOLCELL_LANGGRAPH_PYTHON"
_PROGRAM = Path(__file__).parents[1] / "baselines" / "langgraph_work.py"
_STEPS = 200
_SENDS = 1_000
_THREADS = 10_000


class Count(BaseModel):
    """The state of a loop."""

    n: int = 0


class Items(BaseModel):
    """The state of a fan-out."""

    items: Annotated[tuple[int, ...], append_list] = ()


def _loop() -> Graph[Count]:
    graph = Graph(Count, name="loop")

    @graph.node
    async def add(state: Count) -> Command:
        return goto("add" if state.n < _STEPS - 1 else END, n=state.n + 1)

    return graph.edge(START, "add")


def _fan_out() -> Graph[Items]:
    graph = Graph(Items, name="fan")

    @graph.node
    async def split() -> Any:
        return scatter("worker", range(_SENDS))

    @graph.node
    async def worker(item: int) -> dict[str, Any]:
        return {"items": (item,)}

    return graph.edge(START, "split")


def _ours(graph: Graph[Any], store: Checkpointer, expected: Any) -> Contender:
    flow = Flow(graph, checkpointer=store)

    async def run() -> float:
        started = time.process_time()
        result = await flow.run({})
        took = (time.process_time() - started) * 1_000
        if result.unwrap() != expected:
            raise WrongResult(f"a thread ended with {result.state!r:.80}")
        return took

    return Contender(name="toolcell.flow", run=run)


@contextmanager
def _langgraph(work: str) -> Iterator[Contender]:
    python = os.environ.get(_PYTHON)
    if python is None:
        raise Missing(f"{_PYTHON} names no Python that has langgraph")
    with subprocess.Popen(
        [python, str(_PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ask, answers = process.stdin, process.stdout

        async def run() -> float:
            ask.write(f"{work}\n")
            ask.flush()
            answer = answers.readline()
            if not answer:
                raise WrongResult("langgraph ended early")
            return float(answer)

        yield Contender(name="langgraph", run=run)
        ask.close()


@contextmanager
def _file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, "flows.db")


async def _compare(
    work: str, name: str, ours: Contender, options: Options
) -> list[Row]:
    with _langgraph(name) as theirs:
        taken = await take_turns([ours, theirs], max(1, options.runs // 10))
    return against(work, [each.by_own_clock() for each in taken], [None], "share")


async def step_memory(options: Options) -> list[Row]:
    """A step that adds 1, and keeps it in memory."""
    work, done = f"{_STEPS} steps in memory, CPU", Count(n=_STEPS)
    ours = _ours(_loop(), MemoryCheckpointer(), done)
    return await _compare(work, "step-memory", ours, options)


async def step_sqlite(power_safe: bool, options: Options) -> list[Row]:
    """The same in a file."""
    safe = "survive power" if power_safe else "survive kills"
    work, done = f"{_STEPS} steps that {safe}, CPU", Count(n=_STEPS)
    with _file() as file:
        async with SQLiteCheckpointer(file, power_safe=power_safe) as store:
            ours = _ours(_loop(), store, done)
            return await _compare(work, "step-sqlite", ours, options)


async def fan_out(options: Options) -> list[Row]:
    """A thousand tasks at once in a file."""
    work, done = f"{_SENDS:,} Sends, CPU", Items(items=tuple(range(_SENDS)))
    with _file() as file:
        async with SQLiteCheckpointer(file) as store:
            ours = _ours(_fan_out(), store, done)
            return await _compare(work, "fan-out", ours, options)


async def list_threads(options: Options) -> list[Row]:
    """A hundred of ten thousand paused threads; nothing runs for any of them."""
    graph = Graph(Count, name="paused")
    graph.node(lambda: {"n": interrupt("n?")}, name="ask")
    graph.edge(START, "ask")
    with _file() as file:
        async with SQLiteCheckpointer(file, power_safe=False) as store:
            flow = Flow(graph, checkpointer=store)
            await flow.run({}, "first")
            stored = await store.read("first")
            assert stored is not None
            for number in range(1, _THREADS):
                new = {"thread_id": f"t{number}", "updated": datetime.now(UTC)}
                head = stored.head.model_copy(update=new)
                await store.release(await store.create(head, stored.checkpoints[0]))

            async def run() -> None:
                if len(await flow.threads(status="interrupted")) != 100:
                    raise WrongResult("not a hundred threads")

            [ours] = await take_turns([Contender(name="list", run=run)], options.runs)
    work = f"100 of {_THREADS:,} paused threads"
    return [Row(work=work, ours=ours, compare="absolute", gate=20)]


FLOW_ROWS: dict[str, Callable[[Options], Awaitable[list[Row]]]] = {
    "flow-step-memory": step_memory,
    "flow-step-sqlite": partial(step_sqlite, True),
    "flow-step-sqlite-quick": partial(step_sqlite, False),
    "flow-fan-out": fan_out,
    "flow-list": list_threads,
}
