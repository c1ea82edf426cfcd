"""Rows on tools: one call, a batch, and the same call in other hosts.

Peers are written for mcp 2.3, fastmcp 4.1 and langchain-core 1.7, each by the way
into it that needs no transport.
"""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from measure import (
    CALLS,
    Contender,
    Missing,
    Row,
    Sample,
    WrongResult,
    against,
    repeated,
    take_turns,
)

from toolcell.core import ToolCall
from toolcell.tools import ConcurrentExecutor, ToolRegistry, tool

if TYPE_CHECKING:
    from rows import Options

_BATCH = 1_000
_numbers = itertools.count()


async def _add(a: int, b: int) -> int:
    return a + b


def _executor() -> ConcurrentExecutor:
    return ConcurrentExecutor(ToolRegistry([tool(name="add")(_add)]), guard=None)


def _calls(count: int) -> list[ToolCall]:
    return [
        ToolCall(id=str(next(_numbers)), name="add", arguments={"a": 2, "b": 3})
        for _ in range(count)
    ]


def _check(found: object) -> None:
    if found != 5:
        raise WrongResult(f"2 + 3 became {found!r}")


def _ours(seen: list[float] | None = None) -> Contender:
    executor = _executor()

    async def run() -> float:
        # What a model sent is there already: reading it is not the executor's work.
        calls = _calls(CALLS)
        total = 0.0
        for call in calls:
            started = time.perf_counter()
            result = await executor.call(call)
            took = time.perf_counter() - started
            _check(result.content)
            total += took
            if seen is not None:
                seen.append(took * 1_000_000)
        return total * 1_000

    return Contender(name="executor.call", run=run)


async def tool_call(options: Options) -> list[Row]:
    """Look up, validate, call, record."""
    seen: list[float] = []
    contenders = [_ours(seen), repeated("the bare function", partial(_add, 2, 3))]
    samples = [
        each.by_own_clock() for each in await take_turns(contenders, options.runs)
    ]
    single = Sample(name="executor.call", unit="µs", values=seen)
    late = [sorted(seen)[len(seen) * 99 // 100]]
    slowest = Sample(name="executor.call", unit="µs", values=late)
    return [
        *against(f"{CALLS} tool calls", samples, [None], "share"),
        Row(work="one tool call", ours=single, compare="absolute", gate=25),
        Row(work="one tool call, p99", ours=slowest, compare="absolute", gate=100),
    ]


async def tool_batch(options: Options) -> list[Row]:
    """A batch of calls that do next to nothing."""
    executor = _executor()

    async def ours() -> float:
        calls = _calls(_BATCH)
        started = time.perf_counter()
        results = await executor.execute(calls)
        took = (time.perf_counter() - started) * 1_000
        for result in results:
            _check(result.content)
        return took

    async def bare() -> float:
        started = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for _ in range(_BATCH):
                tasks.start_soon(_add, 2, 3)
        return (time.perf_counter() - started) * 1_000

    contenders = [
        Contender(name="executor.execute", run=ours),
        Contender(name="bare tasks", run=bare),
    ]
    runs = max(1, options.runs // 10)
    samples = [each.by_own_clock() for each in await take_turns(contenders, runs)]
    work = f"batch of {_BATCH:,} tool calls"
    return [
        *against(work, samples, [None], "share"),
        Row(work=work, ours=samples[0], compare="absolute", gate=40),
    ]


def _load(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise Missing(f"{package} is not installed") from None


def _mcp() -> Contender:
    server = _load("mcp.server.mcpserver", "mcp").MCPServer("peer")
    server.tool(name="add")(_add)
    return repeated("mcp call_tool", partial(server.call_tool, "add", {"a": 2, "b": 3}))


def _fastmcp() -> Contender:
    server = _load("fastmcp", "fastmcp").FastMCP("peer")
    server.tool(_add, name="add")
    call = partial(server.call_tool, "add", {"a": 2, "b": 3})
    return repeated("fastmcp call_tool", call)


def _langchain() -> Contender:
    make = _load("langchain_core.tools", "langchain-core").StructuredTool
    made = make.from_function(coroutine=_add, name="add", description="Adds.")
    return repeated("langchain ainvoke", partial(made.ainvoke, {"a": 2, "b": 3}))


async def _against_peer(
    make: Callable[[], Contender], faster: float | None, options: Options
) -> list[Row]:
    samples = await take_turns([_ours(), make()], options.runs)
    own = [each.by_own_clock() for each in samples]
    work = f"{CALLS} tool calls"
    if faster is None:
        return against(work, own, [1.25], "share")
    return against(work, own, [faster])


TOOL_ROWS: dict[str, Callable[[Options], Awaitable[list[Row]]]] = {
    "tool-call": tool_call,
    "tool-batch": tool_batch,
    "peer-tool-mcp": partial(_against_peer, _mcp, None),
    "peer-tool-fastmcp": partial(_against_peer, _fastmcp, 5),
    "peer-tool-langchain": partial(_against_peer, _langchain, 5),
}
