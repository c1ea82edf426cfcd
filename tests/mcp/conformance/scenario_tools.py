"""Ordinary tools, named as the scenarios of MCP's conformance runner call them."""

from __future__ import annotations

import base64

import anyio

from toolcell.core import ToolExecutionError
from toolcell.tools import ToolContext, tool

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9"
    "awAAAABJRU5ErkJggg=="
)
WAV = b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0@\x1f\0\0@\x1f\0\0\1\0\x08\0data\0\0\0\0"


@tool
def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@tool
def test_image_content(context: ToolContext) -> None:
    """Save an image."""
    context.save_artifact("dot.png", PNG, "image/png")


@tool
def test_audio_content(context: ToolContext) -> None:
    """Save a sound."""
    context.save_artifact("silence.wav", WAV, "audio/wav")


@tool
def test_embedded_resource(context: ToolContext) -> None:
    """Save a text."""
    text = b"This is an embedded resource content."
    context.save_artifact("embedded.txt", text, "text/plain")


@tool
def test_multiple_content_types(context: ToolContext) -> str:
    """Save an image and data, and return a text."""
    context.save_artifact("dot.png", PNG, "image/png")
    context.save_artifact("mixed.json", b'{"test":"data"}', "application/json")
    return "Multiple content types test:"


@tool
def test_error_handling() -> None:
    """Fail."""
    raise ToolExecutionError("This tool intentionally returns an error for testing")


@tool
async def test_tool_with_progress(context: ToolContext) -> str:
    """Report progress."""
    for progress in (0, 50, 100):
        context.report_progress(progress, 100)
        await anyio.sleep(0.05)
    return "done"


@tool
def test_elicitation(message: str) -> str:
    """Return the message, once a person agrees to the call."""
    return message


SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
    },
    "additionalProperties": False,
}


@tool(parameters=SCHEMA)
def json_schema_2020_12_tool(name: str = "", address: object = None) -> str:
    """Take an address."""
    return name


tools = [
    test_simple_text,
    test_image_content,
    test_audio_content,
    test_embedded_resource,
    test_multiple_content_types,
    test_error_handling,
    test_tool_with_progress,
    test_elicitation,
    json_schema_2020_12_tool,
]
