"""Growth: the same work 1, 4 and 16 times, and the exponent that its CPU time has.

Work whose parts cost the same however many there are has the exponent 1; each part of
16 times as much costs 1.3 times as much where the exponent is 1.1.
"""

from __future__ import annotations

import itertools
import math
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from baselines.programs import HELLO, PYTHON
from harness.measure import Contender, Row, Sample, WrongResult, against, take_turns
from harness.options import Options, RowMaker
from harness.processes import cells_cpu_seconds
from pydantic import BaseModel

from toolcell.core import ToolCall
from toolcell.flow import END, START, Flow, Graph, MemoryCheckpointer
from toolcell.guard import ActionGuard, AgentPolicy, CallFacts
from toolcell.sandbox import SandboxConfig, SandboxManager
from toolcell.tools import (
    ConcurrentExecutor,
    SQLiteRecords,
    ToolExecutionRecord,
    ToolRegistry,
    tool,
)

_TIMES = (1, 4, 16)
_GATE = 1.1
_WORKERS = 4
_TOOLS_OF_AN_AGENT = 10
_MEASURED_AGENTS = 256
_FACTS = CallFacts()
_numbers = itertools.count()

Work = Callable[[], Awaitable[None]]


async def _growth(
    name: str,
    works: dict[int, Work],
    options: Options,
    seconds: Callable[[], float] = time.process_time,
) -> list[Row]:
    """Return the exponent of work by its size, and its costs beside the smallest."""

    def measured(size: int, work: Work) -> Contender:
        async def run() -> float:
            started = seconds()
            await work()
            return (seconds() - started) * 1_000

        return Contender(name=f"{size:,}", run=run, burst=1)

    contenders = [measured(*each) for each in works.items()]
    samples = await take_turns(contenders, max(1, options.runs // 2))
    one, *more = (sample.by_own_clock() for sample in samples)
    exponents = [
        math.log(large / small, _TIMES[-1] / _TIMES[0])
        for small, large in zip(one.values, more[-1].values, strict=True)
    ]
    exponent = Sample(name="its exponent", unit="(power)", values=exponents)
    return [
        Row(work=f"growth of {name}", ours=exponent, compare="absolute", gate=_GATE),
        *(
            row
            for many in more
            for row in against(f"{many.name} {name}, CPU", [many, one], [None], "share")
        ),
    ]


async def programs(options: Options) -> list[Row]:
    """Programs in reused cells: CPU time of the host and of its cells."""
    config = SandboxConfig(backend="subprocess", python=PYTHON, programs_per_cell=1_000)
    async with SandboxManager(config) as sandbox:

        def work(size: int) -> Work:
            async def run() -> None:
                left = iter(range(size))

                async def some() -> None:
                    for _ in left:
                        if (await sandbox.run(HELLO, agent_id="a")).stdout != "1\n":
                            raise WrongResult("print(1) printed something else")

                async with anyio.create_task_group() as tasks:
                    for _ in range(_WORKERS):
                        tasks.start_soon(some)

            return run

        works = {8 * times: work(8 * times) for times in _TIMES}
        return await _growth("programs", works, options, cells_cpu_seconds)


async def agents(options: Options) -> list[Row]:
    """Guarded calls, and the memory of an agent that has made them."""
    works = {64 * times: _calls_of_agents(64 * times) for times in _TIMES}
    rows = await _growth("agents", works, options)
    tracemalloc.start()
    try:
        run = _calls_of_agents(_MEASURED_AGENTS)
        await run()
        kilobytes = tracemalloc.get_traced_memory()[0] / 1024
    finally:
        tracemalloc.stop()
    each = Sample(name="memory", unit="KB", values=[kilobytes / _MEASURED_AGENTS])
    work = f"an agent with {_TOOLS_OF_AN_AGENT} tools"
    return [*rows, Row(work=work, ours=each, compare="absolute")]


def _calls_of_agents(size: int) -> Work:
    """Return a call by each agent of each of its tools, all behind one guard."""
    names = [f"tool{number}" for number in range(_TOOLS_OF_AN_AGENT)]
    policies = [
        AgentPolicy(agent_id=f"agent{number}", allow=names, max_concurrency=8)
        for number in range(size)
    ]
    guard = ActionGuard(policies)
    calls = [
        ToolCall(id="1", name=name, agent_id=policy.agent_id)
        for policy in policies
        for name in names
    ]

    async def run() -> None:
        for call in calls:
            async with guard.admit(call, _FACTS) as permit:
                await permit.settle({})

    return run


async def records(options: Options) -> list[Row]:
    """Records in a new file."""

    def work(size: int) -> Work:
        async def run() -> None:
            with TemporaryDirectory() as folder:
                store = SQLiteRecords(Path(folder, "records.db"))
                for _ in range(size):
                    store.add(_record())
                store.close()

        return run

    works = {256 * times: work(256 * times) for times in _TIMES}
    return await _growth("records", works, options)


def _record() -> ToolExecutionRecord:
    number = next(_numbers)
    return ToolExecutionRecord(
        call_id=str(number),
        tool_name=f"tool{number % 8}",
        agent_id=f"agent{number % 64}",
        parent_id=None,
        tool_version="1",
        arguments={"a": number},
        verdict="allowed",
        status="ok",
        started_at=datetime.now(UTC),
        duration_ms=1.0,
    )


class Count(BaseModel):
    """The state of a thread."""

    n: int = 0


async def threads(options: Options) -> list[Row]:
    """Threads of a flow with one step."""

    def work(size: int) -> Work:
        graph = Graph(Count, name="one")
        graph.node(lambda: {"n": 1}, name="add")
        graph.edge(START, "add").edge("add", END)

        async def run() -> None:
            flow = Flow(graph, checkpointer=MemoryCheckpointer())
            for number in range(size):
                if (await flow.run({}, f"t{number}")).unwrap().n != 1:
                    raise WrongResult("a thread did not do its step")

        return run

    works = {16 * times: work(16 * times) for times in _TIMES}
    return await _growth("threads", works, options)


async def tools(options: Options) -> list[Row]:
    """A registry made of tools that exist, and a call of each."""

    def work(size: int) -> Work:
        made = [tool(name=f"add{number}")(_add) for number in range(size)]

        async def run() -> None:
            executor = ConcurrentExecutor(ToolRegistry(made), guard=None)
            for adder in made:
                number = str(next(_numbers))
                call = ToolCall(id=number, name=adder.name, arguments={"a": 1, "b": 2})
                if (await executor.call(call)).content != 3:
                    raise WrongResult("a sum is wrong")

        return run

    works = {32 * times: work(32 * times) for times in _TIMES}
    return await _growth("tools", works, options)


async def _add(a: int, b: int) -> int:
    return a + b


GROWTH_ROWS: dict[str, RowMaker] = {
    "growth-programs": programs,
    "growth-agents": agents,
    "growth-records": records,
    "growth-threads": threads,
    "growth-tools": tools,
}
