"""Lists of tools of MCP servers: one that is odd costs itself, and names fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolcell.core import ConfigError, ToolExecutionError
from toolcell.tools import Tool
from toolcell.tools.external.definition import Listing
from toolcell.tools.external.selection import ToolSelection
from toolcell.tools.spi import MCPDefinition

from ...support.mcp.servers import Scripted, definition, processes_of
from ...support.sample_tools import call, executor

pytestmark = pytest.mark.anyio


@pytest.mark.promise("T23")
async def test_names_are_mended_and_cut_and_the_server_is_called_by_its_own(
    tmp_path: Path,
) -> None:
    long, other = "echo" * 30, "echo" * 30 + "s"
    hidden = "a" * 60 + "\u200b"
    odd = ["files/read", "a:b", long, other, "day\u200bs", hidden, "x y", "x_y"]
    server = Scripted(tmp_path, *odd, "echo")
    async with server.toolset() as toolset:
        pairs = zip(toolset.definitions, toolset.tools, strict=True)
        tools = {definition.name: each for definition, each in pairs}
        names = [tools[each].name for each in (long, other)]
        assert tools["files/read"].name == "test__files_read"
        assert tools["a:b"].name == "test__a_b"
        assert [len(name) for name in names] == [64, 64] and len(set(names)) == 2
        shown = {"day\\u{200b}s", "a" * 60 + "\\u{200b}"}
        assert set(toolset.unusable) == shown | {"x y", "x_y"}
        for name in ("files/read", long):
            await executor(*toolset.tools).call(call(tools[name].name))

    assert server.log("called") == ["files/read", long]


@pytest.mark.promise("T9")
async def test_an_empty_cursor_is_the_end(tmp_path: Path) -> None:
    server = Scripted(tmp_path)
    server.tell({"tools": [definition("echo")], "nextCursor": ""})
    async with server.toolset() as toolset:
        assert len(toolset.tools) == 1
        assert toolset.unusable == {}


@pytest.mark.promise("T8")
@pytest.mark.parametrize(
    "bad",
    [
        {"name": "bad", "inputSchema": {}},
        {"name": "bad"},
        {"name": "bad", "inputSchema": {"type": ["object", "null"]}},
        {"name": "bad", "inputSchema": {"type": "array"}},
        {"name": "bad", "inputSchema": {"type": "object"}, "description": 7},
        {"name": 7, "inputSchema": {"type": "object"}},
        {"inputSchema": {"type": "object"}},
        7,
    ],
)
async def test_a_malformed_definition_costs_itself(tmp_path: Path, bad: Any) -> None:
    server = Scripted(tmp_path)
    server.tell([bad, definition("echo")])
    async with server.toolset() as toolset:
        assert "test__echo" in [tool.name for tool in toolset.tools]
        assert len(toolset.unusable) + len(toolset.tools) == 2
        assert (await executor(*toolset.tools).call(call("test__echo"))).ok


@pytest.mark.promise("RG-41")
@pytest.mark.parametrize(
    "listing",
    [
        {},
        {"tools": 7},
        {"tools": [], "nextCursor": 7},
    ],
)
async def test_a_listing_that_is_none_is_no_connection(
    tmp_path: Path, listing: Any
) -> None:
    server = Scripted(tmp_path)
    server.tell(listing)
    with pytest.raises(ToolExecutionError, match="no connection to the MCP server"):
        async with server.toolset():
            pass

    assert processes_of(tmp_path) == []


@pytest.mark.promise("T8")
def test_a_first_list_that_is_given_up_leaves_nothing() -> None:
    def make(given: MCPDefinition) -> Tool:
        raise ConfigError(f"{given.name} is odd", hint="")

    def listing(*names: str) -> Listing[MCPDefinition]:
        return Listing({each: MCPDefinition(**definition(each)) for each in names})

    times = iter([None])
    selection = ToolSelection("the server", make, None)
    with pytest.raises(StopIteration):
        selection.compare(listing("old", "older"), lambda: next(times))
    selection.compare(listing("new"))

    assert selection.unusable == {"new": "new is odd"}
