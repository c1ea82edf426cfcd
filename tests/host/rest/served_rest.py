"""A REST server on a port of its own, with tokens of two agents and a person."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
import uvicorn

from toolcell.core import ImagePart
from toolcell.host import Host, HostConfig
from toolcell.host.http.serving import listen, uvicorn_server
from toolcell.host.http.tokens import TokenStore, open_tokens
from toolcell.host.operator.event_bus import open_events
from toolcell.host.rest.api import open_api
from toolcell.tools import ToolContext, tool

CONFIG = """
[tools]
builtin = [{tools}]
timeout_seconds = 600
[state]
folder = "state"
[server]
max_body_bytes = 20000
max_body_values = 100
{server}
[[policies]]
agent_id = "a"
allow = ["calculate", "hold", "run_python"]
ask = ["pay"]
budgets = [{{ unit = "calls", limit = 1000, per = "agent" }}]
[[policies]]
agent_id = "b"
allow = ["calculate", "hold", "run_python", "*_file"]
"""
PICTURE = ImagePart(mime="image/png", data="iVBORw0KGgo=")
SUM = {"tool": "calculate", "arguments": {"expression": "6 * 7"}}


@dataclass(frozen=True)
class Service:
    """A server, and a client of it."""

    host: Host
    url: str
    http: httpx2.AsyncClient
    keys: dict[str, str]
    tokens: TokenStore
    web: uvicorn.Server
    held: anyio.Event = field(default_factory=anyio.Event)
    """Ends the calls of `hold`."""

    def key(self, name: str = "a") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[name]}"}

    async def get(self, path: str, name: str = "a", **query: Any) -> httpx2.Response:
        return await self.http.get(path, params=query, headers=self.key(name))

    async def post(
        self, path: str, body: Any = None, name: str = "a", **query: Any
    ) -> httpx2.Response:
        return await self.http.post(
            path, json=body, params=query, headers=self.key(name)
        )

    async def asked(self, name: str = "a", **arguments: Any) -> dict[str, Any]:
        """Make a call of `pay`; return its request for approval."""
        body = {"tool": "pay", "arguments": {"to": "x", "key": "", **arguments}}
        call = await self.post("/v1/calls", body, name, wait=0)
        assert call.status_code == 202, call.text
        with anyio.fail_after(60):
            while True:
                told = await self.get("/v1/approvals", name)
                for approval in told.json()["approvals"]:
                    return {**approval, "call": call.json()["id"]}
                await anyio.sleep(0.02)

    @asynccontextmanager
    async def events(
        self, name: str = "a", last_id: str | None = None, **query: Any
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Follow the events of an agent."""
        headers = self.key(name) | ({"Last-Event-ID": last_id} if last_id else {})
        stream = self.http.stream("GET", "/v1/events", headers=headers, params=query)
        async with stream as answer:
            assert answer.status_code == 200
            yield parsed(answer)


async def parsed(answer: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    """Yield server-sent events."""
    event: dict[str, Any] = {}
    async for line in answer.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "data":
            event |= json.loads(value)
        elif name in ("event", "id"):
            event[f"event_{name}"] = value
        elif not line and event:
            yield event
            event = {}


async def take(stream: AsyncIterator[dict[str, Any]], count: int) -> list[Any]:
    """Return the next events of a stream."""
    with anyio.fail_after(60):
        return [await anext(stream) for _ in range(count)]


def own_tools(held: anyio.Event) -> list[Any]:
    """Return a tool that waits for the test, and one that people are asked about."""

    @tool
    async def hold(context: ToolContext) -> str:
        """Wait, and show a picture."""
        await held.wait()
        context.show(PICTURE)
        return "done"

    @tool
    async def pay(to: str, key: str = "") -> str:
        """Pay."""
        return f"paid {to}"

    return [hold, pay]


def configured(
    folder: Path, server: str = "", tools: str = '"arithmetic"'
) -> HostConfig:
    """Return a configuration in a folder, with lines of `[server]`."""
    path = folder / "toolcell.toml"
    path.write_text(CONFIG.format(server=server, tools=tools))
    return HostConfig.from_file(path)


@asynccontextmanager
async def served(
    folder: Path, server: str = "", tools: str = '"arithmetic"'
) -> AsyncIterator[Service]:
    """Serve REST.

    Args:
        folder: A place for the configuration and its state.
        server: Lines of `[server]`, and tables after it.
        tools: The groups of built-in tools.
    """
    config = configured(folder, server, tools)
    with (
        open_tokens(config) as tokens,
        listen("127.0.0.1:0") as listening,
    ):
        keys = {name: tokens.create(name)[1] for name in ("a", "b")}
        keys["operator"] = tokens.create("b", operator=True)[1]
        keys["person"] = tokens.create("a", asks_person=True)[1]
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with (
            Host(config) as host,
            anyio.create_task_group() as tasks,
            httpx2.AsyncClient(base_url=url, timeout=60) as http,
        ):
            async with (
                open_events(
                    host.event_bus, host.approvals, look_seconds=0.02
                ) as events,
                open_api(host, events) as api,
            ):
                web = uvicorn_server(api, 64)
                service = Service(host, url, http, keys, tokens, web)
                host.registry.register_many(own_tools(service.held))
                tasks.start_soon(web._serve, [listening])
                yield service
                service.held.set()
            web.should_exit = True
