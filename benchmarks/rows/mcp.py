"""Rows on serving MCP: the same trivial tool behind us and behind the bare library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from baselines.programs import TOOLCELL
from harness.measure import (
    Contender,
    Missing,
    Row,
    WrongResult,
    against,
    repeated,
    take_turns,
)
from harness.options import Options

_GATE = 1.15
_SERVE = [TOOLCELL, "serve", "--json", "--config"]
_OURS = """
from toolcell.tools import tool


@tool
async def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
"""
_BARE = """
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("bare", log_level="ERROR")


@server.tool()
async def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b


if sys.argv[1:]:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    print('{"url": "http://127.0.0.1:%d/mcp"}' % port, flush=True)
    server.run("streamable-http", port=port)
else:
    server.run()
"""
_CONFIG = """
profile = "development"
[tools]
python = ["added:add"]
folders = ["."]
[server]
agent_id = "a"
[[policies]]
agent_id = "a"
allow = ["add"]
max_concurrency = 100
"""


_OPEN = "[auth]\nunauthenticated = true\n"
_STATE = '[state]\nfolder = "state"\n'
_SESSION = "legacy"
_NO_SESSION = "2026-07-28"


async def mcp_stdio(options: Options) -> list[Row]:
    """A call to a server that the client started."""
    return await _compare("MCP calls, stdio", _stdio, options)


async def mcp_http(options: Options) -> list[Row]:
    """A call to a server on the loopback address, outside a session and in one."""
    without = partial(_http, mode=_NO_SESSION)
    inside = partial(_http, mode=_SESSION)
    return [
        *await _compare("MCP calls, HTTP", without, options),
        *await _compare("MCP calls, HTTP, in a session", inside, options),
    ]


Connect = Callable[[list[str], str, str], Any]


async def _compare(work: str, connect: Connect, options: Options) -> list[Row]:
    needs_mcp()
    with TemporaryDirectory() as folder:
        Path(folder, "added.py").write_text(_OURS)
        Path(folder, "bare.py").write_text(_BARE)
        Path(folder, "open.toml").write_text(_CONFIG + _OPEN)
        Path(folder, "kept.toml").write_text(_CONFIG + _STATE)
        commands = {
            "toolcell serve": [*_SERVE, "open.toml"],
            "bare mcp": [sys.executable, "bare.py"],
            "toolcell serve, tokens and state": [*_SERVE, "kept.toml"],
        }
        token = _token(folder)
        async with AsyncExitStack() as stack:
            contenders = [
                await stack.enter_async_context(
                    _contender(name, connect(command, folder, token))
                )
                for name, command in commands.items()
            ]
            runs = max(1, options.runs // 10)
            samples = await take_turns(contenders, runs)
    ours, base, kept = [sample.by_own_clock() for sample in samples]
    return [
        *against(work, [ours, base], [_GATE], "share"),
        *against(work, [kept, base], [None], "share"),
    ]


def _token(folder: str) -> str:
    create = [TOOLCELL, "tokens", "create", "--agent", "a", "--config", "kept.toml"]
    done = subprocess.run(
        create, cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def needs_mcp() -> None:
    """Raises Missing if the library is not installed."""
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise Missing("mcp is not installed") from None


@asynccontextmanager
async def bare_stdio() -> AsyncIterator[Contender]:
    """Calls to a server of the bare library, a separate process."""
    needs_mcp()
    with TemporaryDirectory() as folder:
        Path(folder, "bare.py").write_text(_BARE)
        bare = [sys.executable, "bare.py"]
        async with _contender("bare mcp, stdio", _stdio(bare, folder, "")) as made:
            yield made


@asynccontextmanager
async def _contender(name: str, connection: Any) -> AsyncIterator[Contender]:
    async with connection as client:

        async def call() -> None:
            result = await client.call_tool("add", {"a": 2, "b": 3})
            if result.structured_content != {"result": 5}:
                raise WrongResult(f"2 + 3 became {result!r}")

        yield repeated(name, call)


@asynccontextmanager
async def _stdio(command: list[str], folder: str, token: str) -> AsyncIterator[Any]:
    from mcp import Client, StdioServerParameters

    program, *rest = command
    server = StdioServerParameters(
        command=program, args=rest, cwd=folder, env=dict(os.environ)
    )
    async with Client(server) as client:
        yield client


@asynccontextmanager
async def _http(
    command: list[str], folder: str, token: str, *, mode: str
) -> AsyncIterator[Any]:
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    listen = ["--http", "127.0.0.1:0"]
    headers = {"Authorization": f"Bearer {token}"}
    with subprocess.Popen(
        [*command, *listen], cwd=folder, stdout=subprocess.PIPE
    ) as server:
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            await _until_it_answers(url)
            async with (
                httpx2.AsyncClient(headers=headers) as http,
                Client(streamable_http_client(url, http_client=http), mode=mode) as it,
            ):
                yield it
        finally:
            server.kill()


async def _until_it_answers(url: str) -> None:
    import anyio
    import httpx2

    async with httpx2.AsyncClient() as http:
        with anyio.fail_after(60):
            while True:
                try:
                    await http.get(url)
                    return
                except httpx2.ConnectError:
                    await anyio.sleep(0.05)


MCP_ROWS: dict[str, Callable[[Options], Awaitable[list[Row]]]] = {
    "mcp-stdio": mcp_stdio,
    "mcp-http": mcp_http,
}
