"""Hosts served over MCP, and clients of them, for tests."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
from anyio.abc import TaskStatus
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.memory import create_client_server_memory_streams
from mcp_types import CallToolResult, ElicitResult, TextContent

from toolcell.host import Host, HostConfig
from toolcell.host.http.serving import listen, serving, url_of
from toolcell.host.http.tokens import TokenStore
from toolcell.host.mcp.caller import Caller
from toolcell.host.mcp.http_server import HTTPServer
from toolcell.host.mcp.server import MCPServer
from toolcell.host.serving.servers import Front
from toolcell.tools import Tool

from ..toolcell_command import TOOLCELL

LEGACY, MODERN = "legacy", "2026-07-28"
MODES = (LEGACY, MODERN)
"""The handshake era and the stateless one."""

CONFIG = """
[sandbox]
backend = "subprocess"
[tools]
builtin = ["arithmetic", "clock"]
[state]
folder = "state"
[server]
agent_id = "a"
approval_seconds = 0.05
[[policies]]
agent_id = "a"
allow = ["calculate", "run_python", "own_*"]
ask = ["get_today_date"]
[[policies]]
agent_id = "b"
allow = ["get_today_date"]
"""
AUDITED = CONFIG + '[audit]\npath = "audit.jsonl"\n'
WITH_CODE = CONFIG.replace('"clock"]', '"clock", "code"]')
SUM = {"expression": "6 * 7"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


def written(folder: Path, text: str = CONFIG) -> Path:
    """Return the path of a configuration in a folder."""
    path = folder / "toolcell.toml"
    path.write_text(text)
    return path


def records(folder: Path, *events: str) -> list[dict[str, Any]]:
    """Return the records of some events, of the audit log of `AUDITED`."""
    lines = (folder / "audit.jsonl").read_text().splitlines()
    return [each for each in map(json.loads, lines) if each["event"] in events]


def settings(folder: Path, text: str = CONFIG) -> HostConfig:
    """Return a configuration of a folder."""
    return HostConfig.from_file(written(folder, text), environ={})


@asynccontextmanager
async def served(
    folder: Path, *tools: Tool, text: str = CONFIG, approver: str | None = None
) -> AsyncIterator[MCPServer]:
    """Serve a host to clients in this process, which are the agent a."""
    async with Host(settings(folder, text)) as host:
        host.registry.register_many(tools)
        caller = Caller(agent_id="a", run_id="run", name="test", approver=approver)
        yield MCPServer(host, lambda ctx: caller)


@asynccontextmanager
async def client_of(server: MCPServer, **options: Any) -> AsyncIterator[Client]:
    """Return a client of a server in this process."""
    async with Client(_pipe(server), **options) as client:
        yield client


@asynccontextmanager
async def _pipe(server: MCPServer) -> AsyncIterator[Any]:
    lowlevel = server.lowlevel
    async with (
        create_client_server_memory_streams() as (ours, theirs),
        anyio.create_task_group() as tasks,
    ):
        options = lowlevel.create_initialization_options()
        tasks.start_soon(lowlevel.run, *theirs, options)
        yield ours
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def http_served(
    folder: Path, *tools: Tool, text: str = CONFIG
) -> AsyncIterator[ServedMCP]:
    """Serve a host over HTTP from this process."""
    async with Host(settings(folder, text)) as host:
        host.registry.register_many(tools)
        async with ServedMCP(host).serving() as server:
            yield server


class ServedMCP:
    """The MCP server of a host over HTTP, on a port of its own.

    Args:
        host: The host; open.
        address: `HOST:PORT`.
    """

    def __init__(self, host: Host, address: str = "127.0.0.1:0") -> None:
        self._socket = listen(address)
        self._http = HTTPServer(host, self._socket)
        self._max_connections = host.config.server.max_connections
        self._stop = anyio.Event()
        self.server = self._http.server
        self.url = f"{url_of(self._socket)}/mcp"

    def stop(self) -> None:
        """Let the server end."""
        self._stop.set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[ServedMCP]:
        """Serve while the block runs, or until `stop`."""
        with self._socket:
            async with anyio.create_task_group() as tasks:
                await tasks.start(self._serve)
                try:
                    yield self
                finally:
                    self.stop()

    async def _serve(self, *, task_status: TaskStatus[None]) -> None:
        front = Front(None)
        web = serving(front, self._socket, self._max_connections)
        async with web, self._http.open() as app:
            front.apps["mcp"] = app
            task_status.started()
            await self._stop.wait()


@contextmanager
def http_process(path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Serve over HTTP from a process of its own; yields its URL and the process."""
    command = [TOOLCELL, "serve", "--http", "127.0.0.1:0", "--json"]
    with subprocess.Popen(
        [*command, "--config", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, process.communicate()
            yield json.loads(line)["url"], process
        finally:
            process.kill()


def make_token(folder: Path, agent: str = "a", **options: Any) -> str:
    """Return a new token of an agent, for a server whose state is in a folder."""
    (folder / "state").mkdir(exist_ok=True)
    with TokenStore(folder / "state" / "tokens.db") as store:
        return store.create(agent, **options)[1]


@asynccontextmanager
async def http_client(
    url: str, text: str = "", headers: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[Client]:
    """Return a client with a token."""
    own = {"Authorization": f"Bearer {text}"} if text else {}
    async with (
        httpx2.AsyncClient(headers=own | (headers or {}), timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), **options) as client,
    ):
        yield client


def said(result: Any) -> Any:
    """Return the structured content of a result, or why the call failed."""
    assert isinstance(result, CallToolResult)
    if not result.is_error:
        return result.structured_content
    # Some clients check it against the tool's schema in errors, too.
    assert result.structured_content is None
    told = (result.meta or {})["toolcell/error"]
    [text] = result.content
    assert isinstance(text, TextContent)
    assert json.loads(text.text) == told
    return told


def answering(action: Any, **content: Any) -> Any:
    """Return what a client's user says to every question; what was asked is kept."""

    async def answer(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action=action, content=content or None)

    asked: list[str] = []
    answer.asked = asked  # type: ignore[attr-defined]
    return answer
