"""Schemas of strangers that are large together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolcell.tools import MCPToolset, OpenAPIToolset
from toolcell.tools.spi import MCPDefinition, MCPPins

from ..support.mcp.servers import Scripted, definition

pytestmark = pytest.mark.promise("R58")
ROOM = 4 << 20
LARGE = {f"large{n}": rf"\w{{16}}{n}" for n in range(6)}
"""Patterns of a little more than 1 MiB each."""


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the patterns of one server take 4 MiB."""
    where = "toolcell.tools.definition.linear_patterns.MAX_SHARED_BYTES"
    monkeypatch.setattr(where, ROOM)


def toolset_of(folder: Path, patterns: dict[str, str]) -> MCPToolset:
    """Return the tools of a server, each with a pattern, as they were approved."""
    approved = [
        MCPDefinition(**definition(name, inputSchema=with_pattern(pattern)))
        for name, pattern in patterns.items()
    ]
    return Scripted(folder).toolset(MCPPins({"test": approved}))


def with_pattern(pattern: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": {"pattern": pattern}}}


@pytest.mark.usefixtures("room")
def test_the_patterns_of_all_tools_of_a_server_have_one_bound(tmp_path: Path) -> None:
    toolset = toolset_of(tmp_path, {**LARGE, "small": "^a$"})

    names = [tool.name for tool in toolset.tools]
    assert names == ["test__large0", "test__large1", "test__large2", "test__small"]
    assert toolset.unusable.keys() == {"large3", "large4", "large5"}
    assert (
        "all tools of its server are too large together" in toolset.unusable["large3"]
    )
    # Another server has room for its own.
    assert len(toolset_of(tmp_path, LARGE).tools) == 3


@pytest.mark.usefixtures("room")
def test_a_pattern_that_many_tools_of_a_server_have_counts_once(tmp_path: Path) -> None:
    same = {f"t{n}": LARGE["large0"] for n in range(100)}

    assert len(toolset_of(tmp_path, same).tools) == 100


@pytest.mark.anyio
@pytest.mark.usefixtures("room")
async def test_the_patterns_of_all_operations_of_an_api_have_one_bound() -> None:
    paths = {
        f"/{name}": {
            "get": {
                "operationId": name,
                "parameters": [{"name": "x", "in": "query", "schema": pattern}],
                "responses": {},
            }
        }
        for name, text in LARGE.items()
        for pattern in [{"type": "string", "pattern": text}]
    }
    info = {"title": "t", "version": "1"}
    document = json.dumps({"openapi": "3.1.0", "info": info, "paths": paths})
    api = OpenAPIToolset("test", document, "https://example.org", pins=None)
    async with api:
        assert len(api.tools) == 3
        assert api.unusable.keys() == {"large3", "large4", "large5"}
