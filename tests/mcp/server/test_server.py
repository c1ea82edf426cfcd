"""The tools of a host, as MCP clients see them in both eras of the protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError
from mcp_types import TextContent
from typing_extensions import TypedDict

from toolcell.tools import tool

from ...support.mcp.served_hosts import (
    CONFIG,
    MODERN,
    MODES,
    SUM,
    client_of,
    said,
    served,
)

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("mode", MODES)]


class Place(TypedDict):
    """Where something is."""

    city: str
    floor: int


@tool(name="own_place", idempotent=True, tags={"read_only", "open-world"})
async def place() -> Place:
    """Say where it is."""
    return {"city": "Rome", "floor": 2}


@tool(name="own_liar")
async def liar() -> Place:
    """Say something else than it declares."""
    return {"city": 3}  # type: ignore[typeddict-item]


@tool(name="own_crash")
async def crash() -> str:
    """Fail with words that are not for a model."""
    raise RuntimeError("the password is 1234")


@tool(name="hidden")
async def hidden() -> str:
    """Do what no policy allows."""
    return "done"


@pytest.mark.promise("GR-15")
async def test_a_client_sees_what_its_agent_may_call(tmp_path: Path, mode: Any) -> None:
    async with (
        served(tmp_path, place, hidden) as server,
        client_of(server, mode=mode) as client,
    ):
        listed = {each.name: each for each in (await client.list_tools()).tools}

    assert set(listed) == {"calculate", "get_today_date", "own_place"}
    shown = listed["own_place"]
    assert shown.description == "Say where it is."
    assert shown.input_schema["additionalProperties"] is False
    assert shown.output_schema is not None
    assert shown.output_schema["required"] == ["city", "floor"]
    assert shown.annotations is not None
    hints = shown.annotations.model_dump(exclude_none=True)
    assert hints == {
        "idempotent_hint": True,
        "read_only_hint": True,
        "open_world_hint": True,
    }


@pytest.mark.promise("N27")
async def test_a_model_is_told_how_to_read_refusals(tmp_path: Path, mode: Any) -> None:
    # Without a handshake a client of the later protocol asks when it wants to know.
    asks = "auto" if mode == MODERN else mode
    async with served(tmp_path) as server, client_of(server, mode=asks) as client:
        told = client.instructions

    assert told is not None
    assert "approval_id" in told and "retry_after_ms" in told


async def test_results_are_text_and_objects(tmp_path: Path, mode: Any) -> None:
    async with (
        served(tmp_path, place) as server,
        client_of(server, mode=mode) as client,
    ):
        await client.list_tools()
        number = await client.call_tool("calculate", SUM)
        where = await client.call_tool("own_place", {})

    assert said(number) == {"result": 42}
    assert number.content == [TextContent(text="42")]
    assert said(where) == {"city": "Rome", "floor": 2}
    [text] = where.content
    assert isinstance(text, TextContent)
    assert json.loads(text.text) == said(where)


async def test_errors_are_data_for_the_model(tmp_path: Path, mode: Any) -> None:
    async with (
        served(tmp_path, crash, liar) as server,
        client_of(server, mode=mode) as client,
    ):
        wrong = await client.call_tool("calculate", {"expression": 1})
        crashed = await client.call_tool("own_crash", {})
        lied = await client.call_tool("own_liar", {})

    assert wrong.is_error and crashed.is_error and lied.is_error
    assert said(wrong)["code"] == "tool.validation"
    assert said(wrong)["field"] == "expression"
    assert said(wrong)["retryable"] is False
    assert said(crashed)["code"] == "tool.execution"
    assert "1234" not in crashed.model_dump_json()
    assert "does not declare" in said(lied)["message"]


async def test_a_refusal_tells_its_rule_and_when_to_come_back(
    tmp_path: Path, mode: Any
) -> None:
    limited = CONFIG.replace("ask =", 'rate_limits = ["1/minute"]\nask =')
    async with (
        served(tmp_path, text=limited) as server,
        client_of(server, mode=mode) as client,
    ):
        await client.call_tool("calculate", SUM)
        refused = await client.call_tool("calculate", SUM)

    told = said(refused)
    assert refused.is_error
    assert (told["code"], told["reason"]) == ("guard.denied", "rate_limited")
    assert 0 < told["retry_after_ms"] <= 60_000
    assert told["retryable"] is True
    assert told["rule"]


async def test_an_unknown_tool_is_a_protocol_error(tmp_path: Path, mode: Any) -> None:
    async with (
        served(tmp_path, hidden) as server,
        client_of(server, mode=mode) as client,
    ):
        codes = []
        for name in ("hidden", "nothing"):
            with pytest.raises(MCPError) as raised:
                await client.call_tool(name, {})
            codes.append((raised.value.code, raised.value.data["code"]))
        after = await client.call_tool("calculate", SUM)

    assert codes == [(-32602, "tool.not_found")] * 2
    assert said(after) == {"result": 42}
