"""Each kind of output and artifact, as MCP clients and messages have it."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)

from toolcell.core import ImagePart, Message, ToolCall
from toolcell.host import Host
from toolcell.host.mcp.artifacts import SavedArtifact, media_type_of
from toolcell.tools import RunContext

from ...support.mcp.served_hosts import (
    MODES,
    WITH_CODE,
    http_client,
    http_served,
    make_token,
    said,
    settings,
    written,
)
from ...support.toolcell_command import TOOLCELL

pytestmark = pytest.mark.anyio

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
WIDE = PNG[:16] + (1569).to_bytes(4, "big") + PNG[20:]
JPEG = bytes.fromhex("ffd8ffc0000b080002000301011100ffd9")
GIF = b"GIF89a\1\0\1\0\0\0\0;"
WEBP = b"RIFF\x0c\0\0\0WEBPVP8 \0\0\0\0"
SVG = "<svg><script>x()</script></svg>"


@dataclass(frozen=True)
class Kind:
    """What a program displays, and what there is of it besides its media types."""

    data: dict[str, Any]
    text: str = ""
    picture: bytes = b""
    left_out: tuple[str, ...] = ()


KINDS = {
    "text": Kind({"text/plain": "plain \x1b[2J"}, "plain \x1b[2J"),
    "markdown": Kind({"text/markdown": "# m"}, "# m"),
    "PNG": Kind({"image/png": PNG}, picture=PNG),
    "LaTeX": Kind({"text/latex": "$x$"}, "$x$"),
    "JPEG": Kind({"image/jpeg": JPEG}, picture=JPEG),
    "HTML": Kind({"text/html": "<b onload=x()>"}, "```html\n<b onload=x()>\n```"),
    "table": Kind({"text/html": "<table><tr><td>a|b"}, "| a\\|b |\n| --- |"),
    "SVG": Kind({"image/svg+xml": SVG}, f"```svg\n{SVG}\n```"),
    "JSON": Kind({"application/json": {"a": [1]}}, '```json\n{"a": [1]}\n```'),
    "chart": Kind({"x/chart+json": {"a": 1}}, '```json\n{"a": 1}\n```'),
    "script": Kind({"application/javascript": "x()"}, "```javascript\nx()\n```"),
    "GIF": Kind({"image/gif": GIF}, f"[image/gif, {len(GIF)} bytes: not sent]"),
    "WebP": Kind({"image/webp": WEBP}, f"[image/webp, {len(WEBP)} bytes: not sent]"),
    "large": Kind(
        {"image/png": WIDE},
        f"[image/png, 1569 x 1 pixels, {len(WIDE)} bytes: not sent]",
    ),
    "PDF": Kind({"application/pdf": b"%PDF-"}, "[application/pdf: not sent]"),
    "several": Kind(
        {"text/plain": "p", "text/html": "<p>", "image/png": PNG, "x/y": "z"},
        picture=PNG,
    ),
    "texts": Kind({"text/plain": "p", "text/html": "<p>", "text/latex": "$"}, "$"),
    "no picture": Kind(
        {"image/png": JPEG, "text/plain": "a plot"}, "a plot", left_out=("image/png",)
    ),
    "last": Kind({"text/plain": "last"}, "last"),
}
FILES: dict[str, tuple[bytes, str, type[ContentBlock]]] = {
    "1.png": (PNG + b"1", "image/png", ImageContent),
    "2.html": (JPEG + b"1", "image/jpeg", ImageContent),
    "3.gif": (GIF, "image/gif", ImageContent),
    "4.webp": (WEBP, "image/webp", ImageContent),
    "5.svg": (SVG.encode(), "application/octet-stream", EmbeddedResource),
    "6.html": (b"<b>", "text/plain", EmbeddedResource),
    "7.json": (b"{}", "application/json", EmbeddedResource),
    "8.md": (b"# m", "text/markdown", EmbeddedResource),
    "9.csv": (b"a,b", "text/csv", EmbeddedResource),
    "a.pdf": (b"%PDF-", "application/octet-stream", EmbeddedResource),
    "b.png": (b"no picture", "text/plain", EmbeddedResource),
    # Shown already.
    "c.png": (PNG, "", ImageContent),
    "d.webp": (b"<script>WEBP", "text/plain", EmbeddedResource),
    "e.wav": (b"<script>WAVE", "text/plain", EmbeddedResource),
}
PROGRAM = f"""
import os
for data in {[kind.data for kind in KINDS.values()]!r}:
    display(data, raw=True)
os.mkdir("artifacts")
for name, data in {[(name, each[0]) for name, each in FILES.items()]!r}:
    open("artifacts/" + name, "wb").write(data)
"""


@asynccontextmanager
async def stdio(folder: Path, mode: Any) -> AsyncIterator[Client]:
    arguments = ["serve", "--config", str(written(folder, WITH_CODE))]
    command = StdioServerParameters(command=TOOLCELL, args=arguments)
    async with Client(command, mode=mode) as client:
        yield client


@asynccontextmanager
async def http(folder: Path, mode: Any) -> AsyncIterator[Client]:
    async with (
        http_served(folder, text=WITH_CODE) as server,
        http_client(server.url, make_token(folder), mode=mode) as client,
    ):
        yield client


def check_outputs(outputs: list[dict[str, Any]], pictures: list[bytes]) -> None:
    """Compare outputs, and the pictures beside them, with the table."""
    assert len(outputs) == len(KINDS)
    shown = iter(pictures)
    for (name, kind), output in zip(KINDS.items(), outputs, strict=True):
        kept = [mime for mime in kind.data if mime not in kind.left_out]
        assert sorted(output["mimes"]) == sorted(kept), name
        assert tuple(output.get("left_out", ())) == kind.left_out, name
        assert output.get("text", "") == kind.text, name
        assert output["origin"] == "program", name
        assert ("picture" in output) is bool(kind.picture), name
        if kind.picture:
            assert pictures[output["picture"] - 1] == next(shown) == kind.picture, name
    assert next(shown, None) is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", [stdio, http])
async def test_each_kind_reaches_a_client(
    tmp_path: Path, place: Any, mode: Any
) -> None:
    """In order; bytes decide the block of an artifact, not its name."""
    async with place(tmp_path, mode) as client:
        result = await client.call_tool("run_python", {"code": PROGRAM})

    facts = said(result)
    assert isinstance(result, CallToolResult)
    text, *blocks = result.content
    assert isinstance(text, TextContent)
    count = sum(bool(each.picture) for each in KINDS.values())
    pictures = [block for block in blocks[:count] if isinstance(block, ImageContent)]
    check_outputs(
        facts["outputs"], [base64.b64decode(picture.data) for picture in pictures]
    )
    known = [kind.picture for kind in KINDS.values() if kind.picture]
    assert [picture.mime_type for picture in pictures] == [
        "image/png" if each == PNG else "image/jpeg" for each in known
    ]
    assert [as_row(block) for block in blocks[count:]] == [
        file for file in FILES.values() if file[1]
    ]
    named = {artifact["name"]: artifact["mime"] for artifact in facts["artifacts"]}
    assert list(named) == list(FILES)
    assert named["4.webp"] == "image/webp"


def as_row(block: ContentBlock) -> tuple[bytes, str | None, type[ContentBlock]]:
    """Return bytes, media type and class of an artifact's block."""
    if isinstance(block, ImageContent):
        return base64.b64decode(block.data), block.mime_type, ImageContent
    assert isinstance(block, EmbeddedResource)
    held = block.resource
    assert held.uri.startswith("artifact:///")
    if isinstance(held, BlobResourceContents):
        return base64.b64decode(held.blob), held.mime_type, EmbeddedResource
    assert isinstance(held, TextResourceContents)
    return held.text.encode(), held.mime_type, EmbeddedResource


async def test_each_kind_reaches_the_messages_of_a_model(tmp_path: Path) -> None:
    call = ToolCall(
        id="c", name="run_python", arguments={"code": PROGRAM}, agent_id="a"
    )
    async with Host(settings(tmp_path, WITH_CODE)) as host:
        result = await host.executor.call(call, run=RunContext(run_id="r"))
    assert isinstance(result.content, dict)
    parts = Message.tool(result).parts

    pictures = [part for part in parts if isinstance(part, ImagePart)]
    assert len(pictures) == len(parts)
    outputs: Any = result.content["outputs"]
    check_outputs(outputs, [base64.b64decode(picture.data) for picture in pictures])
    [block] = Message.tool(result).to_anthropic_format()["content"]
    assert [each["source"]["media_type"] for each in block["content"][1:]] == [
        picture.mime for picture in pictures
    ]


SOUNDS = {
    b"RIFF\0\0\0\0WAVE": "audio/wav",
    b"OggS\0\2": "audio/ogg",
    b"fLaC\0\0\0": "audio/flac",
    b"fLaC\x80\0\0": "audio/flac",
    b"ID3\3\0": "audio/mpeg",
    b"ID3,name\n1,a\n": "text/csv",
    b"OggS and fLaC": "text/csv",
    b"fLaC, OggS": "text/csv",
    PNG: "image/png",
    WEBP: "image/webp",
}


@pytest.mark.parametrize("data", SOUNDS)
def test_a_text_is_no_sound_for_its_first_letters(data: bytes) -> None:
    saved = SavedArtifact("1", data, "text/csv")

    assert media_type_of(saved) == SOUNDS[data]


LIMITS_REACHED = f"""
for n in range(33):
    display({{"image/png": {PNG!r} + bytes([n])}}, raw=True)
for n in range(5):
    display({{"text/markdown": "x" * 16_000}}, raw=True)
for n in range(300):
    display(n)
"""


async def test_limits_that_were_reached_are_told(tmp_path: Path) -> None:
    async with stdio(tmp_path, MODES[0]) as client:
        result = await client.call_tool("run_python", {"code": LIMITS_REACHED})

    facts = said(result)
    assert isinstance(result, CallToolResult)
    assert len(result.content) == 1 + 32
    outputs = facts["outputs"]
    assert len(outputs) == 256
    assert [output.get("picture") for output in outputs[30:33]] == [31, 32, None]
    assert outputs[32]["text"] == f"[image/png, {len(PNG) + 1} bytes: not sent]"
    assert outputs[36]["text"] == "x" * 16_000
    assert outputs[37]["text"] == "[16000 characters: not sent]"
    assert outputs[38]["text"] == "0"
    [warning] = facts["warnings"]
    assert warning.startswith("82 outputs left out")
