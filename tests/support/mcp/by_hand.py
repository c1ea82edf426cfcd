"""Clients that speak MCP by hand: no library stands between a test and the server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from ..toolcell_command import TOOLCELL
from .served_hosts import CONFIG, INITIALIZE, MODERN, ServedMCP

OPEN = f'profile = "development"\n{CONFIG}[auth]\nunauthenticated = true\n'
ACCEPTED = {"Accept": "application/json, text/event-stream"}

META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


def bearer(secret: str) -> dict[str, str]:
    """Return the headers of a client with a token."""
    return {**ACCEPTED, "Authorization": f"Bearer {secret}"}


async def opened(http: httpx2.AsyncClient, server: ServedMCP, secret: str) -> str:
    """Open a session by hand and return its id."""
    answer = await http.post(server.url, json=INITIALIZE, headers=bearer(secret))
    assert answer.status_code == 200, answer.text
    return str(answer.headers["mcp-session-id"])


def request(name: str, arguments: Any, **meta: Any) -> dict[str, Any]:
    """Return what a client that speaks by hand posts."""
    params = {"name": name, "arguments": arguments, "_meta": META | meta}
    headers = {
        **ACCEPTED,
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": "tools/call",
        "Mcp-Name": name,
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return {"json": message, "headers": headers}


INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


@contextmanager
def server(path: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server, and leave nothing of it."""
    with subprocess.Popen(
        [TOOLCELL, "serve", "--config", str(path), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def send(process: subprocess.Popen[bytes], *messages: Any) -> None:
    """Write messages, or bytes as they are."""
    assert process.stdin is not None
    for message in messages:
        text = message if isinstance(message, bytes) else json.dumps(message).encode()
        process.stdin.write(text + b"\n")
    process.stdin.flush()


def receive(process: subprocess.Popen[bytes]) -> Any:
    """Return the next message."""
    assert process.stdout is not None
    return json.loads(process.stdout.readline())
