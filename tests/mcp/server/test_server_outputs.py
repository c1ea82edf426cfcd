"""Programs' outputs, as a client of MCP sees them."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from mcp_types import (
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)

from ...support.mcp.served_hosts import MODES, WITH_CODE, client_of, served

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("mode", MODES)]

DISPLAYING = """
import struct, zlib
from IPython.display import HTML, Image, Markdown, display
def chunk(kind, data):
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)
def png(size):
    head = struct.pack(">IIBBBBB", size, 1, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(size + 1))
    parts = chunk(b"IHDR", head), chunk(b"IDAT", rows), chunk(b"IEND", b"")
    return bytes.fromhex("89504e470d0a1a0a") + b"".join(parts)
display(Image(png(1)), Markdown("# between"), Image(png(2)), Image(png(5_000)))
import os
os.makedirs("artifacts")
open("artifacts/again.png", "wb").write(png(2))
HTML("<table><tr><th>a<tr><td>1</table>")
"""


async def test_programs_show_what_they_display(tmp_path: Path, mode: Any) -> None:
    """In order; a picture that is an artifact as well is sent once."""
    async with (
        served(tmp_path, text=WITH_CODE) as server,
        client_of(server, mode=mode) as client,
    ):
        result = await client.call_tool("run_python", {"code": DISPLAYING})
        [record] = server.host.executor.records.all_records()

    assert isinstance(result, CallToolResult)
    told, first, second = result.content
    assert isinstance(told, TextContent)
    assert result.structured_content is not None
    outputs = result.structured_content["outputs"]
    assert json.loads(told.text)["outputs"] == outputs
    for number, block in enumerate((first, second), 1):
        assert isinstance(block, ImageContent)
        assert block.mime_type == "image/png"
        data = base64.b64decode(block.data)
        assert data[16:20] == bytes([0, 0, 0, number])
        [about] = [output for output in outputs if output.get("picture") == number]
        assert about["bytes"] == len(data)
        assert about["sha256"] == hashlib.sha256(data).hexdigest()
    [artifact] = result.structured_content["artifacts"]
    assert (artifact["mime"], artifact["sha256"]) == ("image/png", about["sha256"])
    assert isinstance(record.result, dict)
    assert record.result["outputs"] == outputs
    assert record.result["artifacts"] == [artifact]
    assert base64.b64encode(data).decode() not in json.dumps(record.result)
    shown = [(output.get("picture"), output.get("text")) for output in outputs]
    assert shown[:3] == [(1, None), (None, "# between"), (2, None)]
    assert shown[3][0] is None
    assert "5000 x 1 pixels" in str(shown[3][1])
    # It is not sent as the files `value.html` and `value.txt` besides.
    assert outputs[4]["is_value"]
    assert shown[4:] == [(None, "| a |\n| --- |\n| 1 |")]


@pytest.mark.promise("JA9")
async def test_a_file_comes_in_and_goes_out(tmp_path: Path, mode: Any) -> None:
    """Texts by the tools of the group `files`; all else as artifacts."""
    text = WITH_CODE.replace('"code"]', '"code", "files"]')
    text = text.replace('"run_python", ', '"run_python", "write_file", ')
    code = (
        "import os\nos.makedirs('artifacts')\n"
        "total = sum(map(int, open('sales.csv').read().split()[1:]))\n"
        "open('artifacts/total.csv', 'w').write(f'total\\n{total}\\n')"
    )
    async with (
        served(tmp_path, text=text) as server,
        client_of(server, mode=mode) as client,
    ):
        sheet = {"path": "sales.csv", "text": "tea\n12\n30\n"}
        await client.call_tool("write_file", sheet)
        result = await client.call_tool("run_python", {"code": code})

    _, artifact = result.content
    assert isinstance(artifact, EmbeddedResource)
    assert isinstance(artifact.resource, TextResourceContents)
    assert artifact.resource.text == "total\n42\n"
