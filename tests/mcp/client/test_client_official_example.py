"""The official example server, over its pipes and over HTTP. GR-15, RG-41."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import ToolResult
from toolcell.tools import MCPCommand, MCPToolset, RunContext
from toolcell.tools.spi import MCPEndpoint, MCPPins, Progress

from ...conftest import missing
from ...support.cells.npm_programs import NotInstalledError, node, node_folder
from ...support.child import Child
from ...support.mcp.servers import be_patient
from ...support.sample_tools import call, executor
from ...support.web.ports import free_port

# The first test may wait for npm.
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(700)]
TOOLS = {
    "echo",
    "get-annotated-message",
    "get-env",
    "get-resource-links",
    "get-resource-reference",
    "get-structured-content",
    "get-sum",
    "get-tiny-image",
    "trigger-long-running-operation",
}


class Folder:
    """Keeps artifacts in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[bytes, str]] = {}

    def save(self, name: str, data: bytes, media_type: str) -> str:
        self.kept[name] = (data, media_type)
        return f"kept:{name}"


@pytest.fixture(scope="module")
def modules() -> Path:
    try:
        return node_folder()
    except NotInstalledError as error:
        missing(str(error))


def script(modules: Path) -> str:
    return str(modules / "@modelcontextprotocol/server-everything/dist/index.js")


@pytest.fixture(scope="module")
def url(modules: Path) -> Iterator[str]:
    for _ in range(5):
        port = free_port()
        with Child(
            [node(modules), script(modules), "streamableHttp"],
            env={**os.environ, "PORT": str(port)},
            stderr=subprocess.PIPE,
            text=True,
        ) as server:
            assert server.stderr is not None
            # It ends if somebody took the port meanwhile.
            if any("listening" in line for line in server.stderr):
                yield f"http://127.0.0.1:{port}/mcp"
                server.kill()
                return
    pytest.fail("the example does not start")


@pytest.fixture(scope="module", params=["stdio", "http"])
def server(request: pytest.FixtureRequest, modules: Path) -> MCPCommand | MCPEndpoint:
    if request.param == "http":
        return MCPEndpoint(url=request.getfixturevalue("url"))
    args = (script(modules), "stdio")
    return MCPCommand(command=node(modules), args=args, where="host")


@pytest.fixture(scope="module")
async def toolset(server: MCPCommand | MCPEndpoint) -> AsyncIterator[MCPToolset]:
    async with MCPToolset("every", server, pins=None) as toolset:
        yield toolset


async def ask(
    toolset: MCPToolset, name: str, *, run: RunContext | None = None, **arguments: Any
) -> ToolResult:
    return await executor(*toolset.tools).call(
        call(f"every__{name}", **arguments), run=run or RunContext()
    )


async def test_its_tools_are_there(toolset: MCPToolset) -> None:
    assert {f"every__{name}" for name in TOOLS} <= {tool.name for tool in toolset.tools}
    assert toolset.unusable == {}


async def test_text_and_numbers(toolset: MCPToolset) -> None:
    assert (await ask(toolset, "echo", message="hi")).content == "Echo: hi"
    summed = await ask(toolset, "get-sum", a=2, b=0.5)
    assert summed.content == "The sum of 2 and 0.5 is 2.5."
    wrong = await ask(toolset, "get-sum", a="2", b=1)
    assert wrong.error is not None and wrong.error.kind == "tool.validation"


async def test_structured_content(toolset: MCPToolset) -> None:
    result = await ask(toolset, "get-structured-content", location="Chicago")

    assert isinstance(result.content, dict)
    assert set(result.content) == {"temperature", "conditions", "humidity"}


async def test_images_and_resources(toolset: MCPToolset) -> None:
    folder = Folder()
    image = await ask(toolset, "get-tiny-image", run=RunContext(artifacts=folder))
    links = await ask(toolset, "get-resource-links", count=2)
    held = await ask(
        toolset, "get-resource-reference", resourceType="Blob", resourceId=1
    )

    assert isinstance(image.content, list)
    [block] = [b for b in image.content if isinstance(b, dict) and b["type"] == "image"]
    [(data, media_type)] = folder.kept.values()
    assert data.startswith(b"\x89PNG") and media_type == "image/png"
    assert block == {
        "type": "image",
        "media_type": "image/png",
        "artifact": "kept:every__get-tiny-image-1",
        "bytes": len(data),
    }
    kinds = [b["type"] for b in links.content if isinstance(b, dict)]  # type: ignore[union-attr]
    assert kinds == ["text", "resource_link", "resource_link"]
    blocks = [b for b in held.content if isinstance(b, dict)]  # type: ignore[union-attr]
    assert [b["type"] for b in blocks] == ["text", "resource", "text"]


async def test_progress(toolset: MCPToolset) -> None:
    reports: list[Progress] = []
    run = RunContext(on_progress=reports.append)
    result = await ask(
        toolset, "trigger-long-running-operation", run=run, duration=0.2, steps=4
    )

    assert result.ok
    assert [report.progress for report in reports] == [1, 2, 3, 4]
    assert reports[0].total == 4


async def test_a_late_call_ends_and_others_go_on(
    server: MCPCommand | MCPEndpoint,
) -> None:
    toolset = MCPToolset("every", server, pins=None, timeout_seconds=1)
    async with toolset:
        late = await ask(
            toolset, "trigger-long-running-operation", duration=60, steps=2
        )
        assert late.status == "timeout"
        be_patient(toolset)
        assert (await ask(toolset, "echo", message="on")).ok


async def test_pins_hold_for_a_server_that_stays_the_same(
    server: MCPCommand | MCPEndpoint, toolset: MCPToolset, tmp_path: Path
) -> None:
    pins = MCPPins().approve("every", toolset.definitions)
    pins.save(tmp_path / "pins.json")
    read = MCPPins.load(tmp_path / "pins.json")
    async with MCPToolset("every", server, pins=read) as pinned:
        assert (await ask(pinned, "echo", message="hi")).ok
        assert pinned.unusable == {}
        assert len(pinned.tools) == len(toolset.tools)


async def test_calls_at_once(toolset: MCPToolset) -> None:
    calls = [call("every__echo", str(n), message=str(n)) for n in range(20)]
    with anyio.fail_after(120):
        results = await executor(*toolset.tools).execute(calls)

    assert [result.content for result in results] == [f"Echo: {n}" for n in range(20)]
