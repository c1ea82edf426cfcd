"""Rows on flows: steps, a fan-out, sizes, a resume and calls, against langgraph.

langgraph runs in its own environment, whose Python `TOOLCELL_LANGGRAPH_PYTHON`
names. Both sides tell the CPU time of their processes.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from harness.measure import (
    Contender,
    Missing,
    Row,
    Sample,
    WrongResult,
    against,
    take_turns,
)
from harness.options import Options
from pydantic import BaseModel, JsonValue

from toolcell.core import ToolCall
from toolcell.flow import (
    END,
    START,
    Command,
    Flow,
    Graph,
    MemoryCheckpointer,
    NodeContext,
    SQLiteCheckpointer,
    append_list,
    goto,
    interrupt,
    scatter,
)
from toolcell.flow.spi import Checkpointer
from toolcell.tools import (
    ConcurrentExecutor,
    SQLiteIdempotency,
    ToolRegistry,
    tool,
)

_PYTHON = "TOOLCELL_LANGGRAPH_PYTHON"
_BASELINES = Path(__file__).parents[1] / "baselines"
_PROGRAM = _BASELINES / "langgraph_work.py"
_PAUSED = _BASELINES / "flow_paused.py"
_STEPS = 200
_SENDS = 1_000
_THREADS = 10_000
_MESSAGES = 1_000
_CALLS = 100


class Count(BaseModel):
    """The state of a loop."""

    n: int = 0


class Items(BaseModel):
    """The state of a fan-out."""

    items: Annotated[tuple[int, ...], append_list] = ()


class Messages(BaseModel):
    """The state of a conversation."""

    messages: Annotated[tuple[str, ...], append_list] = ()


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
        if expected is not None and result.unwrap() != expected:
            raise WrongResult(f"a thread ended with {result.state!r:.80}")
        return took

    return Contender(name="toolcell.flow", run=run)


def _langgraph_python() -> str:
    python = os.environ.get(_PYTHON)
    if python is None:
        raise Missing(f"{_PYTHON} names no Python that has langgraph")
    return python


@contextmanager
def _langgraph(work: str) -> Iterator[Contender]:
    python = _langgraph_python()
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
    work: str, name: str, ours: Contender, gate: float, options: Options
) -> list[Row]:
    with _langgraph(name) as theirs:
        taken = await take_turns([ours, theirs], max(1, options.runs // 10))
    return against(work, [each.by_own_clock() for each in taken], [gate], "share")


async def step_memory(options: Options) -> list[Row]:
    """A step that adds 1, and keeps it in memory."""
    work, done = f"{_STEPS} steps in memory, CPU", Count(n=_STEPS)
    ours = _ours(_loop(), MemoryCheckpointer(), done)
    return await _compare(work, "step-memory", ours, 0.3, options)


async def step_sqlite(power_safe: bool, options: Options) -> list[Row]:
    """The same in a file."""
    safe = "survive power" if power_safe else "survive kills"
    work, done = f"{_STEPS} steps that {safe}, CPU", Count(n=_STEPS)
    with _file() as file:
        async with SQLiteCheckpointer(file, power_safe=power_safe) as store:
            ours = _ours(_loop(), store, done)
            gate = 0.45 if power_safe else 0.2
            return await _compare(work, "step-sqlite", ours, gate, options)


async def fan_out(options: Options) -> list[Row]:
    """A thousand tasks at once in a file."""
    work, done = f"{_SENDS:,} Sends, CPU", Items(items=tuple(range(_SENDS)))
    with _file() as file:
        async with SQLiteCheckpointer(file) as store:
            ours = _ours(_fan_out(), store, done)
            return await _compare(work, "fan-out", ours, 0.12, options)


async def size(options: Options) -> list[Row]:
    """The bytes of a long conversation, a step for each message."""
    graph = Graph(Messages, name="conversation")

    @graph.node
    async def say(state: Messages) -> Command:
        count = len(state.messages)
        return goto("say" if count < _MESSAGES - 1 else END, messages=[f"{count:1000}"])

    graph.edge(START, "say")
    with _file() as file:
        async with SQLiteCheckpointer(file, power_safe=False) as store:
            await _ours(graph, store, None).run()
        found = sum(path.stat().st_size for path in file.parent.iterdir()) / 1e6
    ours = Sample(name="toolcell.flow", unit="MB", values=[found])
    with _langgraph("messages") as langgraph:
        theirs = await langgraph.run()
    assert theirs is not None
    other = Sample(name="langgraph", unit="MB", values=[theirs])
    work = f"the file of {_MESSAGES:,} messages of 1 KB"
    return against(work, [ours, other], [0.012], "share")


def _new_process(name: str, python: str, program: Path) -> Contender:
    """Resume a thread in its own process, by that process's CPU time."""

    def turn(work: str, file: Path) -> float:
        made = subprocess.Popen([python, str(program), work, str(file)])
        _, status, used = os.wait4(made.pid, 0)
        made.returncode = os.waitstatus_to_exitcode(status)
        if made.returncode:
            raise WrongResult(f"{name} did not {work}")
        return (used.ru_utime + used.ru_stime) * 1_000

    async def run() -> float:
        with _file() as file:
            turn("pause", file)
            return turn("resume", file)

    return Contender(name=name, run=run)


async def resume(options: Options) -> list[Row]:
    """A question is answered, and its thread ended, in a new process."""
    ours = _new_process("toolcell.flow", sys.executable, _PAUSED)
    theirs = _new_process("langgraph", _langgraph_python(), _PROGRAM)
    taken = await take_turns([ours, theirs], max(1, options.runs // 20))
    work = "resume in a new process, CPU"
    clocks = [each.by_own_clock() for each in taken]
    return against(work, clocks, [0.75], "share")


async def call(power_safe: bool, gate: float | None, options: Options) -> list[Row]:
    """Calls of a node, which are recorded, and the executor's own."""
    ids = itertools.count()
    graph = Graph(Count, name="calls")

    @graph.node
    async def calls(ctx: NodeContext) -> dict[str, Any]:
        for number in range(_CALLS):
            await ctx.call("add", a=number, b=1)
        return {"n": _CALLS}

    graph.edge(START, "calls")
    add = tool(name="add")(_add)
    with _file() as file:
        async with SQLiteCheckpointer(file, power_safe=power_safe) as store:
            keys = SQLiteIdempotency(file.with_name("keys.db"))
            executor = ConcurrentExecutor(
                ToolRegistry([add]), guard=None, idempotency=keys
            )
            flow = Flow(graph, checkpointer=store, executor=executor)

            async def ours() -> float:
                started = time.process_time()
                result = await flow.run({})
                took = (time.process_time() - started) * 1_000
                if result.unwrap().n != _CALLS:
                    raise WrongResult("a node did not make its calls")
                return took

            async def bare() -> float:
                started = time.process_time()
                for number in range(_CALLS):
                    arguments: dict[str, JsonValue] = {"a": number, "b": 1}
                    made = ToolCall(id=str(next(ids)), name="add", arguments=arguments)
                    if (await executor.call(made)).content != number + 1:
                        raise WrongResult("a sum is wrong")
                return (time.process_time() - started) * 1_000

            contenders = [
                Contender(name="ctx.call", run=ours),
                Contender(name="executor.call", run=bare),
            ]
            taken = await take_turns(contenders, max(1, options.runs // 4))
            keys.close()
    safe = "survive power" if power_safe else "survive kills"
    work = f"{_CALLS} calls that {safe}, CPU"
    clocks = [each.by_own_clock() for each in taken]
    return against(work, clocks, [gate], "share")


async def _add(a: int, b: int) -> int:
    return a + b


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
    "flow-size": size,
    "flow-resume": resume,
    "flow-call": partial(call, False, 2.9),
    "flow-call-power": partial(call, True, None),
}
