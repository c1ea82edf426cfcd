"""Code mode over MCP: clients see three tools, and their programs call the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolcell.tools import tool

from ...support.mcp.by_hand import INITIALIZED, receive, send, server
from ...support.mcp.served_hosts import (
    CONFIG,
    INITIALIZE,
    MODES,
    client_of,
    said,
    served,
    written,
)

pytestmark = [pytest.mark.anyio, pytest.mark.promise("door-7")]
ON_BOTH = pytest.mark.parametrize("mode", MODES)

CODE_MODE = CONFIG.replace(
    'agent_id = "a"\napproval',
    'agent_id = "a"\ncode_mode = true\ndirect_tools = ["own_d*"]\napproval',
).replace('"run_python", "own_*"', '"@code_mode", "own_*"')
THREE = {"search_tools", "describe_tools", "run_code"}


@tool(name="own_direct")
async def direct() -> str:
    """Do what models do often."""
    return "done"


@tool(name="own_double", callers={"code"})
async def double(number: int) -> int:
    """Double a number."""
    return 2 * number


@tool(name="hidden_double")
async def hidden(number: int) -> int:
    """Double a number in secret."""
    return 2 * number


@ON_BOTH
async def test_a_client_finds_and_runs(tmp_path: Path, mode: Any) -> None:
    async with (
        served(tmp_path, direct, double, hidden, text=CODE_MODE) as server,
        client_of(server, mode=mode) as client,
    ):
        listed = {each.name for each in (await client.list_tools()).tools}
        found = await client.call_tool("search_tools", {"query": "double number"})
        code = "first = tools.own_double(4)\ntools.own_double(number=first)"
        ran = await client.call_tool("run_code", {"code": code})
        kept = await client.call_tool("run_code", {"code": "first"})
        around = await client.call_tool("own_double", {"number": 4})

    assert listed == THREE | {"own_direct"}
    assert "def own_double(number: int) -> int:" in str(said(found))
    assert "hidden" not in str(said(found))
    assert ran.structured_content is not None and kept.structured_content is not None
    assert ran.structured_content["value"] == 16, ran.structured_content
    assert kept.structured_content["value"] == 8
    assert around.is_error and "only a program" in str(said(around))


@ON_BOTH
async def test_without_it_nothing_is_different(tmp_path: Path, mode: Any) -> None:
    async with (
        served(tmp_path, direct, double) as server,
        client_of(server, mode=mode) as client,
    ):
        listed = {each.name for each in (await client.list_tools()).tools}

    assert listed == {"calculate", "get_today_date", "own_direct"}


def test_an_option_of_serve_is_enough(tmp_path: Path) -> None:
    rules = CONFIG.replace("allow = [", 'allow = ["@code_mode", ')
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    with server(written(tmp_path, rules), "--code-mode") as process:
        send(process, INITIALIZE, INITIALIZED, listing)
        answers = [receive(process), receive(process)]

    assert {each["name"] for each in answers[1]["result"]["tools"]} == THREE
