"""A host whose three APIs are served at one address, and large values for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2

from toolcell.host import Host, HostConfig
from toolcell.host.config.server import API
from toolcell.host.http.tokens import open_tokens
from toolcell.host.serving.servers import serve_host
from toolcell.tools import tool

from ...support.mcp.by_hand import request

BYTES = 4_000_000

CONFIG = """
[sandbox]
backend = "subprocess"
[tools]
builtin = ["code"]
[state]
folder = "state"
[server]
max_bytes_per_second = 1_000_000_000
[sandbox_api]
domain = "boxes.test"
[[policies]]
agent_id = "a"
allow = ["take", "give"]
[[policies.deny]]
tools = ["*"]
when = { "*" = { mentions_host = ["evil.test", "169.254.169.254"] } }
[[policies.deny]]
tools = ["*"]
when = { "*" = { contains = ["rm -rf", "café"] } }
[[policies]]
agent_id = "b"
allow = ["hold"]
[[policies.ask]]
tools = ["hold"]
[[policies]]
agent_id = "c"
allow = ["run_python"]
[[policies.deny]]
tools = ["*"]
when = { "*" = { contains = ["rm -rf", "café"] } }
[[policies]]
agent_id = "d"
allow = ["sandbox.create"]
[[policies.deny]]
tools = ["*"]
when = { "*" = { contains = ["rm -rf", "café"] } }
"""
APIS: list[API] = ["mcp", "rest", "e2b"]


def filled(part: str) -> str:
    return part * (BYTES // len(part.encode()))


RESULT = BYTES // 4
RESULTS: dict[str, Any] = {
    "one text": "lorem ipsum, " * (RESULT // 13),
    "letters": "日本" * (RESULT // 6),
    "secrets": "token=abcdef " * (RESULT // 13),
    "texts": ["x y z " * 16] * (RESULT // 100),
    "names": {f"name {n} " * 7: n for n in range(RESULT // 100)},
    "numbers": list(range(RESULT // 8)),
    "rows": [{"a": 1, "b": "x", "c": None}] * (RESULT // 30),
}


def message(
    door: API, value: Any, name: str = "take", argument: str = "value"
) -> dict[str, Any]:
    """Return a request that carries a value."""
    if door == "mcp":
        sent = request(name, {argument: value})
        return {"url": "/mcp", **sent}
    if door == "rest":
        body: Any = {"tool": name, "arguments": {argument: value}}
        return {"url": "/v1/calls", "json": body}
    texts = value if isinstance(value, list) else [value]
    metadata = {str(place): each for place, each in enumerate(texts)}
    body = {"templateID": "base", "metadata": metadata}
    return {"url": "/sandboxes", "json": body}


@asynccontextmanager
async def served(folder: Path, agent: str = "a") -> AsyncIterator[httpx2.AsyncClient]:
    """Serve three APIs at one address, by default to an agent with rules on texts."""
    path = folder / "toolcell.toml"
    path.write_text(CONFIG)
    config = HostConfig.from_file(path)
    with open_tokens(config) as tokens:
        key = tokens.create(agent)[1]
    async with Host(config) as host, anyio.create_task_group() as tasks:

        @tool
        def take(value: object) -> int:
            """Take a value."""
            return 1

        @tool
        def give(kind: str) -> list[Any] | dict[str, Any] | str:
            """Return a value."""
            result: list[Any] | dict[str, Any] | str = RESULTS.get(kind, "")
            return result

        @tool
        def hold(value: object) -> int:
            """Wait for a person."""
            return 1

        host.registry.register(hold)
        host.registry.register(take)
        host.registry.register(give)
        urls: dict[API, str] = {}
        ready = anyio.Event()

        def note(api: API, url: str) -> None:
            urls[api] = url
            if len(urls) == len(APIS):
                ready.set()

        at = [("127.0.0.1:0", APIS)]
        tasks.start_soon(
            partial(serve_host, host, at, note, on_console=lambda url, link: None)
        )
        await ready.wait()
        headers = {
            "Authorization": f"Bearer {key}",
            "X-API-Key": key,
            "Content-Type": "application/json",
        }
        root = urls["rest"].partition("/v1")[0]
        async with httpx2.AsyncClient(
            base_url=root, headers=headers, timeout=300
        ) as http:
            yield http
        tasks.cancel_scope.cancel()
