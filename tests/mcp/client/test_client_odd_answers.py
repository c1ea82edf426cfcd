"""Odd answers of MCP servers: each block costs itself."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from toolcell.core import ImagePart, Part
from toolcell.tools import ToolContext
from toolcell.tools.external.definition import MAX_TOOLS
from toolcell.tools.mcp_client.odd_parts import (
    MAX_BLOCKS,
    SET_ASIDE,
    known_blocks,
    set_odd_parts_aside,
)
from toolcell.tools.mcp_client.results import content_of

PNG = b"\x89PNG\r\n\x1a\n and more"
TEXT = base64.encodebytes(PNG).decode()


def content(*blocks: dict[str, Any], shown: list[Part] | None = None) -> Any:
    from mcp.types import CallToolResult

    known = known_blocks(list(blocks))
    result = CallToolResult.model_validate({"content": known})
    return content_of("t", result, ToolContext(call_id="1", tool_name="t", parts=shown))


def image(data: str, mime: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "data": data, "mimeType": mime}


@pytest.mark.promise("T22")
@pytest.mark.parametrize("data", [TEXT, f"data:image/png;base64,{TEXT}"])
@pytest.mark.parametrize("mime", ["image/png", "image/jpeg", "text/plain"])
def test_a_model_sees_a_picture_as_what_it_is(data: str, mime: str) -> None:
    shown: list[Part] = []
    [block] = content(image(data, mime), shown=shown)

    assert block == {
        "type": "image",
        "media_type": mime,
        "shown": True,
        "bytes": len(PNG),
    }
    assert shown == [ImagePart(mime="image/png", data=base64.b64encode(PNG).decode())]


@pytest.mark.promise("T22")
def test_what_nobody_sees_stays_data() -> None:
    fake = base64.b64encode(b"no picture").decode()
    shown: list[Part] = []

    assert content(image(fake), shown=shown)[0]["data"] == fake
    assert shown == []
    assert content(image(TEXT))[0]["data"] == base64.b64encode(PNG).decode()


@pytest.mark.promise("T22")
@pytest.mark.parametrize(
    "odd",
    [
        {"type": "video", "data": "AA=="},
        {"type": "image"},
        {"type": "image", "data": "%%", "mimeType": "image/png"},
        {"type": "text", "text": 7},
        {},
        "text",
        None,
    ],
)
def test_one_odd_block_costs_itself(odd: Any) -> None:
    first, second = content(odd, {"type": "text", "text": "fine"})

    assert second == {"type": "text", "text": "fine"}
    assert "not know" in str(first) or first["unreadable"]


@pytest.mark.promise("R19")
def test_blocks_beyond_a_thousand_are_left_out_and_counted() -> None:
    many = known_blocks([{"type": "text", "text": "a"}] * (MAX_BLOCKS + 7))

    assert len(many) == MAX_BLOCKS + 1
    assert many[-1]["text"] == "[7 more blocks of content]"


@pytest.mark.anyio
@pytest.mark.promise("R19", "T8")
@pytest.mark.parametrize("tool", [{}, {"name": "t", "inputSchema": {"type": "object"}}])
async def test_the_library_looks_at_no_more_tools_than_a_server_may_have(
    tool: dict[str, Any],
) -> None:
    page: dict[str, Any] = {"tools": [tool] * 5_000, "_meta": {"a": 1}}
    await set_odd_parts_aside(page, "2025-11-25")

    known, aside = page["tools"], page["_meta"][SET_ASIDE]
    assert len(known) == (MAX_TOOLS if tool else 0)
    assert len(known) + len(aside) == 5_000
    assert page["_meta"]["a"] == 1
