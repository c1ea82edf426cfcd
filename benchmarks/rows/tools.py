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
from operator import attrgetter
from typing import Any

import anyio
from harness.measure import (
    CALLS,
    Contender,
    Missing,
    Row,
    Sample,
    WrongResult,
    against,
    take_turns,
)
from harness.options import Options

from toolcell.core import ToolCall
from toolcell.tools import ConcurrentExecutor, ToolRegistry, tool

_BATCH = 1_000
_BATCH_WORK = f"batch of {_BATCH:,} tool calls"
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


class _Timed:
    """Calls timed one by one: their median hardly depends on other load."""

    def __init__(
        self,
        name: str,
        work: Callable[[ToolCall], Awaitable[Any]],
        value: Callable[[Any], object],
    ) -> None:
        self._work = work
        self._value = value
        self.each = Sample(name=name, unit="µs")
        self.contender = Contender(name=name, run=self._run)

    async def _run(self) -> None:
        # What a model sent is there already: reading it is not the executor's work.
        for call in _calls(CALLS):
            started = time.perf_counter()
            result = await self._work(call)
            self.each.values.append((time.perf_counter() - started) * 1_000_000)
            _check(self._value(result))


def _ours() -> _Timed:
    return _Timed("executor.call", _executor().call, attrgetter("content"))


async def tool_call(options: Options) -> list[Row]:
    """Look up, validate, call, record."""
    ours, bare = _ours(), _Timed("the bare function", lambda _: _add(2, 3), int)
    await take_turns([ours.contender, bare.contender], options.runs)
    return [
        *against("one tool call", [ours.each, bare.each], [None], "share"),
        Row(work="one tool call, p99", ours=ours.each.slowest(), compare="absolute"),
    ]


async def tool_one(options: Options) -> list[Row]:
    """A batch of one call, as most models ask for it."""
    executor = _executor()
    one = _Timed(
        "executor.execute",
        lambda call: executor.execute([call]),
        lambda results: results[0].content,
    )
    alone = _Timed("executor.call", executor.call, attrgetter("content"))
    await take_turns([one.contender, alone.contender], options.runs)
    return against("batch of one tool call", [one.each, alone.each], [1.25], "share")


async def tool_batch(options: Options) -> list[Row]:
    """A batch of calls that do next to nothing."""

    async def bare() -> float:
        started = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for _ in range(_BATCH):
                tasks.start_soon(_add, 2, 3)
        return (time.perf_counter() - started) * 1_000

    contenders = [_batch(), Contender(name="bare tasks", run=bare)]
    runs = max(1, options.runs // 10)
    samples = [turn.by_own_clock() for turn in await take_turns(contenders, runs)]
    return [
        *against(_BATCH_WORK, samples, [None], "share"),
        Row(work=_BATCH_WORK, ours=samples[0], compare="absolute"),
    ]


def _batch() -> Contender:
    executor = _executor()

    async def run() -> float:
        calls = _calls(_BATCH)
        started = time.perf_counter()
        results = await executor.execute(calls)
        took = (time.perf_counter() - started) * 1_000
        for result in results:
            _check(result.content)
        return took

    return Contender(name="executor.execute", run=run)


def _load(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise Missing(f"{package} is not installed") from None


def _structured(result: Any) -> object:
    return result.structured_content["result"]


async def peer_mcp(options: Options) -> list[Row]:
    """The same call in the library of MCP: usual, late, and a thousand of them."""
    server = _load("mcp.server.mcpserver", "mcp").MCPServer("peer")
    server.tool(name="add")(_add)
    call = partial(server.call_tool, "add", {"a": 2, "b": 3})
    ours, theirs = _ours(), _Timed("mcp call_tool", lambda _: call(), _structured)
    await take_turns([ours.contender, theirs.contender], options.runs)

    async def thousand() -> float:
        started = time.perf_counter()
        for _ in range(_BATCH):
            await call()
        return (time.perf_counter() - started) * 1_000

    many = [_batch(), Contender(name="mcp call_tool, in turn", run=thousand)]
    batches = await take_turns(many, max(1, options.runs // 10))
    return [
        *against("one tool call", [ours.each, theirs.each], [1.25], "share"),
        *against(
            "one tool call, p99",
            [ours.each.slowest(), theirs.each.slowest()],
            [1.56],
            "share",
        ),
        *against(
            _BATCH_WORK, [batch.by_own_clock() for batch in batches], [2], "share"
        ),
    ]


def _fastmcp() -> _Timed:
    server = _load("fastmcp", "fastmcp").FastMCP("peer")
    server.tool(_add, name="add")
    call = partial(server.call_tool, "add", {"a": 2, "b": 3})
    return _Timed("fastmcp call_tool", lambda _: call(), _structured)


def _langchain() -> _Timed:
    make = _load("langchain_core.tools", "langchain-core").StructuredTool
    made = make.from_function(coroutine=_add, name="add", description="Adds.")
    call = partial(made.ainvoke, {"a": 2, "b": 3})
    return _Timed("langchain ainvoke", lambda _: call(), int)


async def _against_peer(make: Callable[[], _Timed], options: Options) -> list[Row]:
    ours, theirs = _ours(), make()
    await take_turns([ours.contender, theirs.contender], options.runs)
    return against("one tool call", [ours.each, theirs.each], [5])


TOOL_ROWS: dict[str, Callable[[Options], Awaitable[list[Row]]]] = {
    "tool-call": tool_call,
    "tool-one": tool_one,
    "tool-batch": tool_batch,
    "peer-tool-mcp": peer_mcp,
    "peer-tool-fastmcp": partial(_against_peer, _fastmcp),
    "peer-tool-langchain": partial(_against_peer, _langchain),
}
