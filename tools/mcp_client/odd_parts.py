"""Answers of a server, changed so that one odd part costs itself and not the rest."""

from __future__ import annotations

import functools
from typing import Any

import anyio.lowlevel
from pydantic import TypeAdapter, ValidationError

from ..definition.validation import json_bytes
from ..external.definition import MAX_DEFINITION_BYTES, MAX_TOOLS

MAX_BLOCKS = 1_000
"""Blocks of content of one answer. When it is reached the rest is left out, and a text
in its place says so."""

SET_ASIDE = "toolcell/tools"
"""The key in `_meta` of a page for the tools that the MCP library does not look at."""

_UNKNOWN = {"type": "text", "text": "[a block of content that MCP does not know]"}
_AT_ONCE = 50
"""Tools that are looked at before others have their turn."""

PAGE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""The members that a page must have beside its tools. Its own may be large: the library
checks them once."""


async def set_odd_parts_aside(
    result: dict[str, Any], version: str | None, before: int = 0
) -> None:
    """Change an answer of a server before the MCP library checks it as one.

    Args:
        result: An answer to `tools/call` or `tools/list`, or any other.
        version: The version of the protocol; None: no list of tools is expected yet.
        before: Tools of the same page in the parts before; default: it is the first.
    """
    content, tools = result.get("content"), result.get("tools")
    if isinstance(content, list):
        result["content"] = known_blocks(content)
    if isinstance(tools, list) and version is not None:
        room = max(0, MAX_TOOLS - before)
        known, odd = await _well_formed(tools[:room], version)
        meta = result.get("_meta")
        aside = {SET_ASIDE: odd + tools[room:]}
        result["tools"] = known
        result["_meta"] = meta | aside if isinstance(meta, dict) else aside


def known_blocks(content: list[Any]) -> list[Any]:
    """Return blocks of an answer; one that MCP does not know is a text about it."""
    blocks = [block if _is_known(block) else _UNKNOWN for block in content[:MAX_BLOCKS]]
    if left := len(content) - len(blocks):
        blocks.append({"type": "text", "text": f"[{left} more blocks of content]"})
    return blocks


def _is_known(block: Any) -> bool:
    try:
        _block_adapter().validate_python(block)
    except ValidationError:
        return False
    return True


@functools.cache
def _block_adapter() -> TypeAdapter[Any]:
    from mcp.types import ContentBlock

    return TypeAdapter(ContentBlock)


async def _well_formed(tools: list[Any], version: str) -> tuple[list[Any], list[Any]]:
    """Return the tools that the library takes, and the others: too large ones too."""
    from mcp_types.methods import parse_server_result

    known: list[Any] = []
    odd: list[Any] = []
    for number, tool in enumerate(tools):
        if number % _AT_ONCE == 0:
            await anyio.lowlevel.checkpoint()
        try:
            if len(json_bytes(tool)) > MAX_DEFINITION_BYTES:
                raise ValueError
            parse_server_result("tools/list", version, PAGE | {"tools": [tool]})
        except (RecursionError, ValueError):
            odd.append(tool)
        else:
            known.append(tool)
    return known, odd
