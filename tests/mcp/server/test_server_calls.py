"""Calls over MCP while they run: progress, cancellation, limits, the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
    ToolListChangedNotification,
)

from toolcell.tools import ToolContext, tool

from ...support.mcp.served_hosts import (
    CONFIG,
    LEGACY,
    MODES,
    SUM,
    WITH_CODE,
    client_of,
    said,
    served,
)

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("mode", MODES)]

PNG = b"\x89PNG\r\n\x1a\n"
ONE_CALL = CONFIG.replace("approval_seconds", "max_requests = 1\napproval_seconds")


class Hanging:
    """A tool that waits until it is let go, or cancelled."""

    def __init__(self) -> None:
        self.began = anyio.Event()
        self.go = anyio.Event()
        self.cancelled = False
        self.tool = tool(name="own_hang")(self.hang)

    async def hang(self) -> str:
        """Wait."""
        self.began.set()
        try:
            await self.go.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled = True
            raise
        return "let go"


@tool(name="own_steps")
async def steps(context: ToolContext) -> str:
    """Report from the loop."""
    for step in (0, 50, 100):
        context.report_progress(step, 100, f"step {step}")
    return "done"


@tool(name="own_thread")
def threaded(context: ToolContext) -> str:
    """Report from a thread."""
    for step in (1, 2, 3):
        context.report_progress(step)
    return "done"


@tool(name="own_files")
async def files(context: ToolContext) -> None:
    """Save an image, a text, and a page that says it is an image."""
    context.save_artifact("a.png", PNG, "image/png")
    context.save_artifact("notes/b.txt", b"words", "text/plain")
    context.save_artifact("c.png", b"<script>alert(1)</script>", "image/png")
    context.save_artifact("d.html", b"<script>alert(1)</script>", "text/html")


@tool(name="own_path")
async def path(name: str, context: ToolContext) -> str:
    """Save under a name."""
    return context.save_artifact(name, b"", "text/plain")


async def test_progress_comes_in_order_before_the_result(
    tmp_path: Path, mode: Any
) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    async def on_progress(
        progress: float, total: float | None, message: str | None
    ) -> None:
        seen.append((progress, total, message))

    async with (
        served(tmp_path, steps, threaded) as server,
        client_of(server, mode=mode) as client,
    ):
        await client.call_tool("own_steps", {}, progress_callback=on_progress)
        await client.call_tool("own_thread", {}, progress_callback=on_progress)
        quiet = await client.call_tool("own_steps", {})

    assert seen == [
        (0, 100, "step 0"),
        (50, 100, "step 50"),
        (100, 100, "step 100"),
        (1, None, None),
        (2, None, None),
        (3, None, None),
    ]
    assert said(quiet) == {"result": "done"}


async def test_a_silent_call_gives_signs_of_life(
    tmp_path: Path, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcell.host.mcp.progress.PERIOD_SECONDS", 0.01)
    hanging, seen = Hanging(), []

    async def on_progress(progress: float, total: Any, message: Any) -> None:
        seen.append(progress)
        if len(seen) == 3:
            hanging.go.set()

    async with (
        served(tmp_path, hanging.tool) as server,
        client_of(server, mode=mode) as client,
    ):
        done = await client.call_tool("own_hang", {}, progress_callback=on_progress)

    assert said(done) == {"result": "let go"}
    assert seen[:3] == sorted(set(seen[:3]))


@pytest.mark.promise("E-133")
async def test_a_client_that_gives_up_stops_the_tool(tmp_path: Path, mode: Any) -> None:
    hanging = Hanging()
    async with (
        served(tmp_path, hanging.tool) as server,
        client_of(server, mode=mode) as client,
    ):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "own_hang", {})
            await hanging.began.wait()
            tasks.cancel_scope.cancel()
        while len(server.calls):
            await anyio.sleep(0.01)
        after = await client.call_tool("calculate", SUM)
        records = server.host.executor.records.all_records()

    assert hanging.cancelled
    assert said(after) == {"result": 42}
    assert [record.status for record in records] == ["cancelled", "ok"]


@pytest.mark.promise("E-133")
async def test_a_client_that_gives_up_kills_the_cell(tmp_path: Path, mode: Any) -> None:
    running = anyio.Event()

    async def on_progress(progress: float, total: Any, message: Any) -> None:
        running.set()

    code = "import time\nwhile True:\n    print('on', flush=True)\n    time.sleep(0.1)"
    async with (
        served(tmp_path, text=WITH_CODE) as server,
        client_of(server, mode=mode) as client,
    ):
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                await client.call_tool(
                    "run_python", {"code": code}, progress_callback=on_progress
                )

            tasks.start_soon(call)
            await running.wait()
            tasks.cancel_scope.cancel()
        while len(server.calls):
            await anyio.sleep(0.01)
        assert server.host.sandbox is not None
        again = await client.call_tool("run_python", {"code": "6 * 7"})
        [first, _] = server.host.executor.records.all_records()

    assert said(again)["value"] == 42
    assert first.status == "cancelled"


@pytest.mark.promise("E-101", "E-135")
async def test_artifacts_are_what_their_bytes_are(tmp_path: Path, mode: Any) -> None:
    async with (
        served(tmp_path, files) as server,
        client_of(server, mode=mode) as client,
    ):
        result = await client.call_tool("own_files", {})

    assert isinstance(result, CallToolResult)
    image, text, lie, page = result.content
    assert isinstance(image, ImageContent)
    assert (image.mime_type, image.data) == ("image/png", "iVBORw0KGgo=")
    assert isinstance(text, EmbeddedResource)
    assert isinstance(text.resource, TextResourceContents)
    assert text.resource.uri == "artifact:///notes/b.txt"
    assert isinstance(lie, EmbeddedResource)
    assert isinstance(lie.resource, BlobResourceContents)
    assert lie.resource.mime_type == "application/octet-stream"
    assert isinstance(page, EmbeddedResource)
    assert page.resource.mime_type == "text/plain"
    assert result.meta is not None
    assert result.meta["toolcell/call"]["tool"] == "own_files"


@pytest.mark.promise("E-136")
@pytest.mark.parametrize("name", ["../a", "a/../../b", "/etc/passwd", "a//b", ""])
async def test_no_artifact_is_named_out_of_its_folder(
    tmp_path: Path, mode: Any, name: str
) -> None:
    async with (
        served(tmp_path, path) as server,
        client_of(server, mode=mode) as client,
    ):
        result = await client.call_tool("own_path", {"name": name})

    assert result.is_error
    assert "is no name of an artifact" in said(result)["message"]


@pytest.mark.promise("JF3")
async def test_a_missing_module_is_named(tmp_path: Path, mode: Any) -> None:
    async with (
        served(tmp_path, text=WITH_CODE) as server,
        client_of(server, mode=mode) as client,
    ):
        result = await client.call_tool("run_python", {"code": "import not_here"})

    [warning] = said(result)["warnings"]
    assert "module 'not_here' is missing" in warning


async def test_programs_hand_out_what_they_make(tmp_path: Path, mode: Any) -> None:
    code = (
        "import os\nos.makedirs('artifacts', exist_ok=True)\n"
        f"open('artifacts/plot.png', 'wb').write({PNG!r})"
    )
    async with (
        served(tmp_path, text=WITH_CODE) as server,
        client_of(server, mode=mode) as client,
    ):
        result = await client.call_tool("run_python", {"code": code})

    kinds = [type(each) for each in result.content]
    assert kinds == [TextContent, ImageContent]


# Limits, and the end.


@pytest.mark.promise("T6")
@pytest.mark.parametrize("kind", ["text", "artifact"])
async def test_a_result_that_is_too_large_is_an_error(
    tmp_path: Path, mode: Any, kind: str
) -> None:
    """All that is sent counts: clients end the connection at a message too large."""
    calls: list[str] = []

    @tool(name="own_big")
    async def big(size: int, ctx: ToolContext) -> str:
        """Return a text, or save it."""
        calls.append(kind)
        if kind == "artifact":
            ctx.save_artifact("a.txt", b"x" * size)
            return ""
        return "x" * (size // 2)

    text = CONFIG.replace("[server]\n", "[server]\nmax_result_bytes = 10_000\n")
    async with (
        served(tmp_path, big, text=text) as server,
        client_of(server, mode=mode) as client,
    ):
        small = await client.call_tool("own_big", {"size": 5_000})
        large = await client.call_tool("own_big", {"size": 10_001})

    assert not small.is_error
    assert said(large)["reason"] == "result_too_large"
    assert said(large)["retryable"] is False
    assert "took effect" in said(large)["message"]
    assert len(calls) == 2


async def test_too_many_calls_are_busy(tmp_path: Path, mode: Any) -> None:
    hanging = Hanging()
    async with (
        served(tmp_path, hanging.tool, text=ONE_CALL) as server,
        client_of(server, mode=mode) as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(client.call_tool, "own_hang", {})
        await hanging.began.wait()
        busy = await client.call_tool("calculate", SUM)
        hanging.go.set()

    assert said(busy)["code"] == "server.busy"
    assert said(busy)["retryable"] is True


async def test_draining_waits_for_calls_that_run(tmp_path: Path, mode: Any) -> None:
    hanging = Hanging()
    results: list[Any] = []
    cancelled: list[int] = []
    async with (
        served(tmp_path, hanging.tool) as server,
        client_of(server, mode=mode) as client,
        anyio.create_task_group() as tasks,
    ):

        async def call() -> None:
            results.append(await client.call_tool("own_hang", {}))

        async def drain() -> None:
            cancelled.append(await server.calls.drain(60))

        tasks.start_soon(call)
        await hanging.began.wait()
        tasks.start_soon(drain)
        while not server.calls.draining:
            await anyio.lowlevel.checkpoint()
        late = await client.call_tool("calculate", SUM)
        hanging.go.set()

    assert said(late)["code"] == "server.busy"
    assert cancelled == [0]
    assert [said(result) for result in results] == [{"result": "let go"}]


@pytest.mark.promise("T7")
async def test_draining_ends_calls_that_run_too_long(tmp_path: Path, mode: Any) -> None:
    hanging, results = Hanging(), []
    async with (
        served(tmp_path, hanging.tool) as server,
        client_of(server, mode=mode) as client,
        anyio.create_task_group() as tasks,
    ):

        async def call() -> None:
            results.append(await client.call_tool("own_hang", {}))

        tasks.start_soon(call)
        await hanging.began.wait()
        cancelled = await server.calls.drain(0)

    assert cancelled == 1
    assert hanging.cancelled
    told = said(results[0])
    assert (told["retryable"], told["outcome"]) == (False, "unknown")


async def test_clients_hear_of_a_change_of_tools(tmp_path: Path, mode: Any) -> None:
    heard = anyio.Event()

    async def on_message(message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            heard.set()

    async with (
        served(tmp_path) as server,
        client_of(server, mode=mode, message_handler=on_message) as client,
    ):
        await client.list_tools()
        if mode == LEGACY:
            server.host.registry.register(steps)
            await heard.wait()
        else:
            async with client.listen(tools_list_changed=True) as changes:
                server.host.registry.register(steps)
                async for _ in changes:
                    break
        names = {each.name for each in (await client.list_tools()).tools}

    assert "own_steps" in names


async def test_no_tool_finds_what_came_with_the_request(
    tmp_path: Path, mode: Any
) -> None:
    seen: dict[str, Any] = {}

    @tool(name="own_look")
    async def look(context: ToolContext) -> str:
        """Look around."""
        seen.update(context.metadata)
        return context.run_id or ""

    async with (
        served(tmp_path, look) as server,
        client_of(server, mode=mode) as client,
    ):
        meta: Any = {"secret": "1234"}
        result = await client.call_tool("own_look", {}, meta=meta)

    assert said(result) == {"result": "run"}
    assert seen == {}
