"""Rows on MCP servers in cells: a warm server's call there, and on the host."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from baselines import programs
from baselines.programs import PYTHON
from harness.measure import (
    CALLS,
    Contender,
    Row,
    Sample,
    WrongResult,
    against,
    repeated,
    take_turns,
)
from harness.options import Options

from rows.mcp import needs_mcp
from toolcell.sandbox import SandboxConfig
from toolcell.tools import ConcurrentExecutor, MCPCommand, MCPToolset, ToolRegistry

_SERVER = """
import json, sys
tool = {"name": "add", "inputSchema": {"type": "object"}}
about = {"serverInfo": {"name": "sums", "version": "1"}, "capabilities": {"tools": {}}}
for line in sys.stdin:
    message = json.loads(line)
    method, given = message.get("method"), message.get("params", {})
    answer = {"error": {"code": -32601, "message": "no such method"}}
    if method == "initialize":
        answer = {"result": {**about, "protocolVersion": given["protocolVersion"]}}
    elif method == "tools/list":
        answer = {"result": {"tools": [tool]}}
    elif method == "tools/call":
        text = str(sum(given["arguments"].values()))
        answer = {"result": {"content": [{"type": "text", "text": text}]}}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"""
_PROGRAM = ("-c", _SERVER)


async def mcp_in_cell(options: Options) -> list[Row]:
    """A call of a server in a cell that is a process of this machine."""
    cell = SandboxConfig(backend="subprocess", python=PYTHON)
    return await _compare(cell, 1.0, options)


async def mcp_in_container(options: Options) -> list[Row]:
    """A call of a server in a container."""
    programs.needs_docker(options.image, "runc")
    cell = SandboxConfig(backend="docker", image=options.image, runtime="runc")
    return await _compare(cell, 2.0, options)


async def _compare(cell: SandboxConfig, gate: float, options: Options) -> list[Row]:
    needs_mcp()
    inside = MCPCommand(command="python3", args=_PROGRAM, cell=cell)
    outside = MCPCommand(command=PYTHON, args=_PROGRAM, where="host")
    async with AsyncExitStack() as stack:
        contenders = [
            await stack.enter_async_context(_calls("in a cell", inside)),
            await stack.enter_async_context(_calls("on the host", outside)),
        ]
        runs = max(1, options.runs // 10)
        samples = await take_turns(contenders, runs)
    ours, base = samples
    pairs = zip(ours.values, base.values, strict=True)
    added = Sample(name="the difference", values=[(a - b) / CALLS for a, b in pairs])
    return [
        *against(f"{CALLS} calls of an MCP server", samples, [None], "share"),
        Row(
            work=f"what a {cell.backend} cell adds to a call of an MCP server",
            ours=added,
            compare="absolute",
            gate=gate,
        ),
    ]


@asynccontextmanager
async def _calls(name: str, server: MCPCommand) -> AsyncIterator[Contender]:
    numbers = itertools.count()
    async with MCPToolset("sums", server, pins=None) as toolset:
        executor = ConcurrentExecutor(ToolRegistry(toolset.tools), guard=None)

        async def call() -> None:
            number = f"{next(numbers)}"
            arguments = {"a": 2, "b": 3}
            asked = {"id": number, "name": "sums__add", "arguments": arguments}
            result = await executor.call(asked)
            if result.content != "5":
                raise WrongResult(f"2 + 3 became {result!r}")

        yield repeated(name, call)


MCP_CELL_ROWS: dict[str, Callable[[Options], Awaitable[list[Row]]]] = {
    "mcp-in-cell": mcp_in_cell,
    "mcp-in-container": mcp_in_container,
}
