"""Answers of an MCP server, as the content of results."""

from __future__ import annotations

import base64
import binascii
import math
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from toolcell.core import ImagePart, InvalidInputError, ToolExecutionError
from toolcell.core.event_loop import read_large
from toolcell.core.text.picture_type import picture_type
from toolcell.core.text.printable import escaped

from ..definition.context import ToolContext
from ..definition.json_schema import BuiltValidator, problems_of
from ..definition.validation import json_bytes
from ..external.definition import unknown_outcome

if TYPE_CHECKING:
    from mcp.shared.dispatcher import ProgressFnT
    from mcp.types import CallToolResult

MAX_ERROR_CHARACTERS = 4_096
"""Length of an error's text. When it is reached the text is cut."""

MAX_PROGRESS_CHARACTERS = 256
"""Characters of a progress message. When it is reached the text is cut."""

_MEDIA_TYPE = re.compile(r"[\w.+-]{1,64}/[\w.+-]{1,64}", re.ASCII)
UNNAMED_MEDIA = "application/octet-stream"
_Block = dict[str, JsonValue]


async def check_output(
    tool: str, result: CallToolResult, output: BuiltValidator, context: ToolContext
) -> None:
    """Check the structured content of an answer that is no error.

    Raises:
        ToolExecutionError: It does not fit the tool's definition.
    """
    if result.is_error:
        return
    value = result.structured_content
    check = partial(problems_of, output, value)
    problems = await read_large(context.agent_id or "", value, check)
    if value is None or problems:
        raise unknown_outcome(f"{tool} answered what does not fit its output schema")


def content_of(tool: str, result: CallToolResult, context: ToolContext) -> JsonValue:
    """Return the content of an answer.

    A single text is returned as it is. A structured answer replaces the texts beside
    it, which repeat it. Everything else is a list of blocks, each with its `type`;
    images, sounds and other data become artifacts if the host stores them, else base64.
    Models see PNG and JPEG as pictures.

    Raises:
        ToolExecutionError: The tool failed, or its answer is not JSON.
    """
    if result.is_error:
        texts = [block.text for block in result.content if block.type == "text"]
        text = escaped("\n".join(texts), MAX_ERROR_CHARACTERS) or "it does not say why"
        raise ToolExecutionError(
            f"{tool} failed: {text}",
            hint="change the arguments as it says, or use another tool",
        )
    structured = result.structured_content
    blocks = [
        _block(f"{tool}-{number}", block, context)
        for number, block in enumerate(result.content)
    ]
    plain = [block["text"] for block in blocks if block["type"] == "text"]
    content: JsonValue = list(blocks)
    if structured is not None and len(plain) == len(blocks):
        content = structured
    elif structured is not None:
        content = {"structured": structured, "content": list(blocks)}
    elif len(plain) == len(blocks) <= 1:
        content = plain[0] if plain else None
    try:
        json_bytes(content)
    except (RecursionError, ValueError):
        raise unknown_outcome(f"{tool} answered what is not JSON") from None
    return content


def _block(name: str, block: Any, context: ToolContext) -> _Block:
    match block.type:
        case "text":
            return {"type": "text", "text": block.text}
        case "image" | "audio":
            return _data(name, block.type, block.data, block.mime_type, context)
        case "resource_link":
            # A name only: nothing is fetched.
            link: _Block = {"type": block.type, "uri": str(block.uri)}
            return link | {"name": block.name, "media_type": _media(block.mime_type)}
    resource = block.resource
    about: _Block = {"uri": str(resource.uri)}
    if hasattr(resource, "text"):
        media_type = _media(resource.mime_type or "text/plain")
        return {
            "type": "resource",
            **about,
            "media_type": media_type,
            "text": resource.text,
        }
    return about | _data(name, "resource", resource.blob, resource.mime_type, context)


def _data(
    name: str, kind: str, text: str, media_type: str | None, context: ToolContext
) -> _Block:
    media = _media(media_type)
    block: _Block = {"type": kind, "media_type": media}
    try:
        # Some send a URL of data, or break the lines.
        bare = text.rpartition(";base64,")[2] if text.startswith("data:") else text
        data = base64.b64decode("".join(bare.split()), validate=True)
    except (binascii.Error, ValueError):
        return block | {"unreadable": "it is not base64"}
    is_shown = kind == "image" and _show(data, context)
    if context.artifacts is not None:
        reference = context.save_artifact(name, data, media)
        return block | {"artifact": reference, "bytes": len(data)}
    if is_shown:
        return block | {"shown": True, "bytes": len(data)}
    return block | {"data": base64.b64encode(data).decode()}


def _show(data: bytes, context: ToolContext) -> bool:
    """Show the model a picture; its bytes say what it is, and not its server."""
    mime = picture_type(data)
    if mime != "image/png" and mime != "image/jpeg":
        return False
    return context.show(ImagePart(mime=mime, data=base64.b64encode(data).decode()))


def bare_media_type(given: str | None) -> str:
    """Return a media type without its parameters; empty if it cannot be one."""
    bare = (given or "").partition(";")[0]
    return bare if _MEDIA_TYPE.fullmatch(bare) else ""


def _media(media_type: str | None) -> str:
    known = media_type is not None and _MEDIA_TYPE.fullmatch(media_type)
    return media_type if known and media_type else UNNAMED_MEDIA


class MCPProgressRelay:
    """Passes on how far a call has come, until the call ends."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._is_over = False

    @property
    def callback(self) -> ProgressFnT | None:
        """The function for reports; None: nobody listens, so the server sends none."""
        return None if self._context.on_progress is None else self._report

    def end(self) -> None:
        self._is_over = True

    async def _report(
        self, progress: float, total: float | None, message: str | None
    ) -> None:
        if self._is_over or not math.isfinite(progress):
            return
        known = total if total is not None and math.isfinite(total) else None
        text = None if message is None else escaped(message, MAX_PROGRESS_CHARACTERS)
        try:
            self._context.report_progress(progress, known, text)
        except InvalidInputError:
            # It did not grow, as it has to.
            return
