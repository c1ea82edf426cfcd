"""Odd answers of MCP servers: each block costs itself."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from toolcell.core import ImagePart, Part
from toolcell.tools import ToolContext
from toolcell.tools.mcp_client.results import content_of, with_known_blocks

PNG = b"\x89PNG\r\n\x1a\n and more"
TEXT = base64.encodebytes(PNG).decode()


def content(*blocks: dict[str, Any], shown: list[Part] | None = None) -> Any:
    from mcp.types import CallToolResult

    known = with_known_blocks(list(blocks))
    result = CallToolResult.model_validate({"content": known})
    return content_of(
        "t", result, None, ToolContext(call_id="1", tool_name="t", parts=shown)
    )


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
