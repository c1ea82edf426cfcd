"""All APIs of a host from one process: what they share, and what is for whom."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import httpx2
import pytest

from toolcell.core import ConfigError
from toolcell.host import Host, HostConfig
from toolcell.host.cli.serving.serve import addresses_of
from toolcell.host.config.server import API
from toolcell.host.http.tokens import open_tokens
from toolcell.host.serving.servers import serve_host
from toolcell.tools import tool

from ...support.mcp.served_hosts import MODERN, http_client, said

CONFIG = """
[sandbox]
backend = "subprocess"
[state]
folder = "state"
[server]
agent_id = "a"
max_requests = 1
[sandbox_api]
domain = "boxes.test"
[[policies]]
agent_id = "a"
allow = ["hold", "sandbox.*"]
"""
SHARED: list[API] = ["mcp", "rest", "e2b"]


@dataclass
class Served:
    """What one process serves, and how to talk to it."""

    host: Host
    key: str
    operator: str
    urls: dict[str, str] = field(default_factory=dict)
    console: str = ""
    at_work: anyio.Event = field(default_factory=anyio.Event)
    done: anyio.Event = field(default_factory=anyio.Event)


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    """Serve the three APIs at one address, and the console at another."""
    path = folder / "toolcell.toml"
    path.write_text(CONFIG)
    config = HostConfig.from_file(path)
    with open_tokens(config) as tokens:
        key = tokens.create("a")[1]
        operator = tokens.create("o", operator=True)[1]
    async with Host(config) as host, anyio.create_task_group() as tasks:
        made = Served(host, key, operator)

        @tool(name="hold")
        async def hold() -> str:
            """Wait for the test."""
            made.at_work.set()
            await made.done.wait()
            return "done"

        host.registry.register(hold)
        ready = anyio.Event()

        def note_url(api: API, url: str) -> None:
            made.urls[api] = url
            if len(made.urls) == len(SHARED):
                ready.set()

        def note_console(url: str, link: str | None) -> None:
            made.console = url

        async def serve() -> None:
            await serve_host(
                host,
                [("127.0.0.1:0", SHARED)],
                note_url,
                console="127.0.0.1:0",
                on_console=note_console,
            )

        tasks.start_soon(serve)
        await ready.wait()
        yield made
        made.done.set()
        tasks.cancel_scope.cancel()


@pytest.mark.promise("JC2")
@pytest.mark.anyio
@pytest.mark.namespaces
async def test_all_apis_see_the_same_calls_places_and_events(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as made,
        httpx2.AsyncClient(base_url=made.urls["rest"], timeout=60) as http,
        anyio.create_task_group() as tasks,
    ):
        agent = {"Authorization": f"Bearer {made.key}"}
        operator = {"Authorization": f"Bearer {made.operator}"}
        found: list[object] = []

        async def call_over_mcp() -> None:
            url = made.urls["mcp"]
            async with http_client(url, made.key, mode=MODERN) as client:
                found.append(said(await client.call_tool("hold", {})))

        tasks.start_soon(call_over_mcp)
        await made.at_work.wait()
        everything = {"agent": "*"}
        [live] = (
            await http.get("/v1/live", params=everything, headers=operator)
        ).json()["calls"]
        busy = await http.post(
            "/v1/calls", json={"tool": "hold", "arguments": {}}, headers=agent
        )
        sandboxes = await http.get("/v2/sandboxes", headers={"x-api-key": made.key})
        console = await http.get(made.console, follow_redirects=True)
        stream = http.stream("GET", "/v1/events", params=everything, headers=operator)
        async with stream as events:
            lines = events.aiter_lines()
            made.done.set()
            with anyio.fail_after(60):
                while "call.ended" not in await anext(lines):
                    pass

    assert (live["tool"], live["agent_id"]) == ("hold", "a")
    assert busy.status_code == 503
    assert (sandboxes.status_code, sandboxes.json()) == (200, [])
    assert (console.status_code, "Sign in" in console.text) == (200, True)
    assert found == [{"result": "done"}]


@pytest.mark.anyio
@pytest.mark.namespaces
async def test_what_names_a_sandbox_is_for_no_other_api(tmp_path: Path) -> None:
    """E2B's errors have a number as `code`, and REST's a `kind`."""
    by_header = {"e2b-sandbox-id": "none", "e2b-sandbox-port": "8000"}
    by_name = {"host": "8000-none.boxes.test"}
    requests = {
        "/v1/tools": ({}, "rest"),
        "/mcp": ({}, "mcp"),
        "/.well-known/oauth-protected-resource/mcp": ({}, "mcp"),
        "/sandboxes": ({}, "e2b"),
        "/other": ({}, "e2b"),
        "/sandboxes/none/ports/8000/v1/tools": ({}, "e2b"),
        "/v1/live": (by_header, "e2b"),
        "/mcp?": (by_header, "e2b"),
        "/v1/budgets": (by_name, "e2b"),
        "/mcp??": (by_name, "e2b"),
    }
    async with (
        served(tmp_path) as made,
        httpx2.AsyncClient(base_url=made.urls["rest"], timeout=60) as http,
    ):
        answers = {
            path: await http.get(path, headers=headers)
            for path, (headers, _) in requests.items()
        }
        health = await http.get("/healthz")

    told = {path: spoken_by(answer) for path, answer in answers.items()}
    assert told == {path: api for path, (_, api) in requests.items()}
    assert health.status_code == 200


def spoken_by(answer: httpx2.Response) -> str:
    assert answer.status_code in (401, 403, 404, 501, 502), answer.text
    if not answer.headers.get("content-type", "").startswith("application/json"):
        return "mcp"
    body = answer.json()
    if isinstance(body.get("code"), int):
        return "e2b"
    return "rest" if "kind" in (body.get("error") or ()) else "mcp"


@pytest.mark.anyio
async def test_pages_of_sandboxes_are_not_beside_tools_for_everybody(
    tmp_path: Path,
) -> None:
    path = tmp_path / "toolcell.toml"
    path.write_text(
        f'profile = "development"\n{CONFIG}[auth]\nunauthenticated = true\n'
    )
    async with Host(HostConfig.from_file(path)) as host:
        with pytest.raises(ConfigError, match="pages of sandboxes"):
            await serve_host(
                host,
                [("127.0.0.1:0", SHARED)],
                lambda api, url: None,
                on_console=lambda url, link: None,
            )


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ((None, None, None), []),
        (("h:1", None, None), [("h:1", ["mcp", "rest"])]),
        (("h:1", "h:2", None), [("h:1", ["mcp"]), ("h:2", ["rest"])]),
        ((None, "h:2", "h:3"), [("h:2", ["rest"]), ("h:3", ["e2b"])]),
        (("h:0", None, "h:0"), [("h:0", ["mcp", "rest"]), ("h:0", ["e2b"])]),
    ],
)
def test_an_option_serves_its_api_also_or_alone(
    options: tuple[str | None, str | None, str | None],
    wanted: list[tuple[str, list[API]]],
) -> None:
    assert addresses_of(("mcp", "rest"), *options) == wanted


def test_an_address_without_an_api_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing is left for --http"):
        addresses_of(("rest",), "h:1", "h:2", None)
