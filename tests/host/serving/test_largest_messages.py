"""The largest messages of strangers hold the event loop for a moment, on each door."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from toolcell.host import Host, HostConfig
from toolcell.host.config.server import API
from toolcell.host.http.tokens import open_tokens
from toolcell.host.serving.servers import serve_host
from toolcell.tools import tool

from ...support.mcp.by_hand import request
from ...support.web.loop_steps import SECONDS, TRIES, steps

pytestmark = [pytest.mark.anyio, pytest.mark.promise("R2", "R41", "R53", "R66")]

CONFIG = """
[sandbox]
backend = "subprocess"
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
"""
APIS: list[API] = ["mcp", "rest", "e2b"]
READ = {"mcp": [200], "rest": [200], "e2b": [400, 403]}
"""The answers to what was read whole: results, or a refusal of what it says."""

BYTES = 4_000_000
VALUES = 9_000


def filled(part: str) -> str:
    return part * (BYTES // len(part.encode()))


def values(part: str, count: int) -> list[str]:
    return [filled(part)[: BYTES // len(part.encode()) * len(part) // count]] * count


def deep(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


WORST: dict[str, Any] = {
    "one text": filled("lorem ipsum, "),
    "letters": filled("日本"),
    "marks": filled("\u0301\u0323"),
    "dots": filled("a."),
    "quotes": filled("a 'b' "),
    "secrets": filled("token=abcdef "),
    "many texts": values("lorem ipsum tok ", VALUES),
    "many secrets": values("token=abc secret ", VALUES),
    "many names of hosts": values("日本.jp 1.2.3.4 ", VALUES),
    "long texts": values("a.b 'c' ", 42),
    "names": {text + str(n): n for n, text in enumerate(values("k", VALUES // 2))},
    "numbers": list(range(VALUES)),
    "long numbers": [int("7" * 1_000)] * 90,
    "deep": [deep(60) for _ in range(VALUES // 62)],
}


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


@pytest.mark.parametrize("door", APIS)
async def test_no_message_holds_the_loop(tmp_path: Path, door: API) -> None:
    async with served(tmp_path) as http:
        # The first call also makes what later ones use.
        await http.post(**message(door, "x"))
        for kind, value in WORST.items():
            sent = message(door, value)
            body = json.dumps(sent.pop("json"), ensure_ascii=False).encode()
            longest: list[float] = []
            while len(longest) < TRIES:
                with steps() as taken:
                    answer = await http.post(content=body, **sent)
                assert answer.status_code in READ[door], (kind, answer.text)
                longest.append(max(taken))
                if longest[-1] < SECONDS:
                    break
            assert min(longest) < SECONDS, (kind, longest)


@pytest.mark.parametrize("door", ["mcp", "rest"])
async def test_no_result_holds_the_loop(tmp_path: Path, door: API) -> None:
    slow: dict[str, float] = {}
    async with served(tmp_path) as http:
        for kind in ["", *RESULTS]:
            sent = message(door, kind, "give", "kind")
            longest: list[float] = []
            while len(longest) < TRIES:
                with steps() as taken:
                    answer = await http.post(**sent)
                assert len(answer.content) > RESULT // 2 or not kind, answer.text
                longest.append(max(taken))
                if longest[-1] < SECONDS:
                    break
            else:
                slow[kind] = min(longest)
    assert not slow


@pytest.mark.promise("R51")
async def test_no_request_that_waits_holds_the_loop(tmp_path: Path) -> None:
    kinds = {
        "long texts": values("lorem ipsum, ", 45)[:10],
        "secrets": values("token=abcdef ", 45)[:2],
        "many texts": values("x y z ", 20 * VALUES)[:VALUES],
    }
    async with served(tmp_path, "b") as http:
        with steps() as asked:
            for value in kinds.values():
                sent = message("rest", value, "hold")
                call = (await http.post("/v1/calls?wait=0", json=sent["json"])).json()
                while call["state"] != "parked":
                    assert call["state"] != "ended", call["result"]
                    await anyio.sleep(0.05)
                    call = (await http.get(f"/v1/calls/{call['id']}?wait=0")).json()
        looks = []
        for _ in range(TRIES):
            with steps() as shown:
                found = (await http.get("/v1/approvals")).json()["approvals"]
            looks.append(max(shown))
            if looks[-1] < SECONDS and len(found) == len(kinds):
                break
    assert len(found) == len(kinds)
    assert len(found[1]["hidden"]) > 1_000
    assert max(asked) < SECONDS
    assert min(looks) < SECONDS
