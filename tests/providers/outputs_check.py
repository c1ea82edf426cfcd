"""Shows what real classes of frameworks make of a program that displays things."""

from __future__ import annotations

from pydantic_ai import Agent
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from toolcell.providers.pydantic_ai import ToolcellToolset
from toolcell.providers.smolagents import ToolcellExecutor
from toolcell.sandbox import SandboxConfig

CODE = """
import struct, zlib
def chunk(kind, data):
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)
head = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))
rows = chunk(b"IDAT", zlib.compress(bytes(72)))
png = bytes.fromhex("89504e470d0a1a0a") + head + rows + chunk(b"IEND", b"")
from IPython.display import Image, Markdown
print("printed")
display(Markdown("**text**"), Image(png))
"""
CONFIG = SandboxConfig(backend="subprocess")
SCRIPT = [ToolCallPart("run_python", {"code": CODE}), TextPart("Done.")]


def say(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Say the next part of the script."""
    return ModelResponse(parts=[SCRIPT.pop(0)])


tools = ToolcellToolset(CONFIG)
ended = Agent(FunctionModel(say), toolsets=[tools]).run_sync("Try it.")
tools.close()
[told] = [
    part
    for message in ended.all_messages()
    for part in message.parts
    if isinstance(part, ToolReturnPart)
]
facts, picture = told.content
assert isinstance(picture, BinaryContent), picture
assert told.files == [picture]
print("pydantic-ai:", facts["outputs"], picture.media_type, picture.data[1:4])

executor = ToolcellExecutor(CONFIG)
executor.send_tools({})
found = executor(CODE)
executor.cleanup()
print("smolagents:", found.logs.splitlines())
