"""Calls without a session over HTTP: one JSON text, however long it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from toolcell.tools import ToolContext, tool

from ...support.mcp.by_hand import OPEN, request
from ...support.mcp.served_hosts import (
    MODERN,
    SUM,
    http_client,
    http_served,
    said,
)

pytestmark = pytest.mark.anyio


class Slow:
    """A tool that waits until it is let go, or cancelled."""

    def __init__(self) -> None:
        self.began, self.go, self.stopped = anyio.Event(), anyio.Event(), anyio.Event()
        self.tool = tool(name="own_slow")(self.wait)

    async def wait(self) -> str:
        """Wait."""
        self.began.set()
        try:
            await self.go.wait()
        except anyio.get_cancelled_exc_class():
            self.stopped.set()
            raise
        return "let go"


def data_of(line: str) -> Any:
    return json.loads(line.removeprefix("data: "))["result"]["structuredContent"]


async def test_a_quick_call_is_answered_in_json(tmp_path: Path) -> None:
    async with (
        http_served(tmp_path, text=OPEN) as server,
        httpx2.AsyncClient(timeout=60) as http,
    ):
        good = await http.post(server.url, **request("calculate", SUM))
        unknown = await http.post(server.url, **request("none_such", {}))

    assert good.headers["content-type"] == "application/json"
    assert good.json()["result"]["structuredContent"] == {"result": 42}
    assert unknown.status_code == 400
    assert unknown.json()["error"]["data"]["code"] == "tool.not_found"


async def test_a_client_that_leaves_stops_its_tool(tmp_path: Path) -> None:
    slow = Slow()
    async with (
        http_served(tmp_path, slow.tool, text=OPEN) as server,
        httpx2.AsyncClient(timeout=60) as http,
    ):
        async with anyio.create_task_group() as tasks:
            asked = request("own_slow", {})
            tasks.start_soon(lambda: http.post(server.url, **asked))
            await slow.began.wait()
            tasks.cancel_scope.cancel()
        await slow.stopped.wait()


async def test_a_call_that_takes_long_stays_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcell.host.mcp.responses.KEEP_ALIVE_SECONDS", 0.01)
    slow = Slow()
    async with (
        http_served(tmp_path, slow.tool, text=OPEN) as server,
        httpx2.AsyncClient(timeout=60) as http,
        http.stream("POST", server.url, **request("own_slow", {})) as answer,
    ):
        lines = [line async for line in _let_go_at(answer, ": ping", slow)]

    assert answer.headers["content-type"] == "text/event-stream"
    assert lines[-3] == "event: message"
    assert data_of(lines[-2]) == {"result": "let go"}


async def _let_go_at(answer: httpx2.Response, sign: str, slow: Slow) -> Any:
    async for line in answer.aiter_lines():
        if line == sign:
            slow.go.set()
        yield line


async def test_a_client_that_wants_progress_gets_it(tmp_path: Path) -> None:
    @tool(name="own_steps")
    async def steps(context: ToolContext) -> str:
        """Tell of a step."""
        context.report_progress(1, 2)
        return "done"

    seen: list[float] = []

    async def on_progress(progress: float, total: Any, message: Any) -> None:
        seen.append(progress)

    async with (
        http_served(tmp_path, steps, text=OPEN) as server,
        http_client(server.url, mode=MODERN) as client,
    ):
        done = await client.call_tool("own_steps", {}, progress_callback=on_progress)

    assert said(done) == {"result": "done"}
    assert seen == [1]
