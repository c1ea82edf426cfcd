"""Converts tools and their results to the types of MCP."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import mcp_types as types
from jsonschema import Draft202012Validator
from jsonschema.validators import extend
from mcp.shared.inbound import x_mcp_header_map

from toolcell.core import (
    ErrorInfo,
    ImagePart,
    Part,
    ToolExecutionError,
    ToolResult,
)
from toolcell.core.event_loop import rest
from toolcell.tools import Tool, to_mcp

from .artifacts import SavedArtifact, to_block

CALL_META = "toolcell/call"
"""The key in `_meta` for the id, tool, status and usage of the call."""

ERROR_META = "toolcell/error"
"""The key in `_meta` for the error of a failed call, as data. It is not put in
`structuredContent`, because some clients validate that against the tool's output schema
in errors, too, and discard what does not fit.
"""

_HINTS = {
    "read_only_hint": "read_only",
    "destructive_hint": "destructive",
    "open_world_hint": "open_world",
}


def _resting(keyword: Callable[..., Any]) -> Callable[..., Any]:
    def check(*given: Any) -> Any:
        rest()
        return keyword(*given)

    return check


_Validator: Any = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {name: _resting(each) for name, each in Draft202012Validator.VALIDATORS.items()},
)
"""It takes 7 µs for each value; of a large result in a thread, which rests."""


class ToolDefinitions:
    """The definitions of tools in `tools/list`, each made once."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[Tool, types.Tool] = WeakKeyDictionary()
        self._validators: WeakKeyDictionary[Tool, Any] = WeakKeyDictionary()
        self._named: WeakKeyDictionary[Tool, bool] = WeakKeyDictionary()

    def of(self, tool: Tool) -> types.Tool:
        """Return the definition of a tool.

        Its annotations come from `idempotent` and from the tags `read_only`,
        `destructive` and `open_world`.
        """
        made = self._made.get(tool)
        if made is None:
            made = self._made[tool] = _definition(tool)
        return made

    def names_headers(self, tool: Tool) -> bool:
        """Return True if clients repeat arguments of a tool in HTTP headers."""
        named = self._named.get(tool)
        if named is None:
            named = self._named[tool] = bool(x_mcp_header_map(tool.parameters))
        return named

    def structured(self, tool: Tool | None, content: Any) -> dict[str, Any]:
        """Return a tool's content as the object that its output schema describes.

        Args:
            tool: The tool; None: it was registered after the call began.
            content: The returned value.

        Raises:
            ToolExecutionError: The content does not match the schema.
        """
        if tool is None or tool.returns is None:
            return content if isinstance(content, dict) else {"result": content}
        validator = self._validators.get(tool)
        if validator is None:
            validator = self._validators[tool] = _Validator(tool.returns)
        if not validator.is_valid(content):
            raise ToolExecutionError(
                f"{tool.name} returned what it does not declare",
                hint="use another tool, until its function returns what its "
                "schema says",
            )
        is_object = tool.returns.get("type") == "object"
        return dict(content) if is_object else {"result": content}


def _definition(tool: Tool) -> types.Tool:
    shown = to_mcp(tool)
    tags = {tag.lower().replace("-", "_") for tag in tool.tags}
    hints: dict[str, Any] = {hint: True for hint in _HINTS if _HINTS[hint] in tags}
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=shown["inputSchema"],
        output_schema=shown.get("outputSchema"),
        annotations=types.ToolAnnotations(idempotent_hint=tool.idempotent, **hints),
    )


def success(
    result: ToolResult,
    structured: dict[str, Any],
    artifacts: Sequence[SavedArtifact] = (),
    *,
    max_bytes: int,
) -> types.CallToolResult:
    """Return the result of a call, with what it showed and the artifacts that it saved.

    An artifact that was shown is not sent twice.

    Args:
        result: The result.
        structured: Its content, as an object.
        artifacts: What the call saved.
        max_bytes: Bytes of the whole as JSON.

    Raises:
        ToolExecutionError: It has more bytes.
    """
    blocks = [_part(part) for part in result.parts]
    shown = {each.data for each in blocks if isinstance(each, types.ImageContent)}
    for artifact in artifacts:
        block = to_block(artifact)
        if not (isinstance(block, types.ImageContent) and block.data in shown):
            blocks.append(block)
    if result.content is not None or not blocks:
        blocks.insert(0, types.TextContent(text=result.to_text()))
    made = types.CallToolResult(
        content=blocks, structured_content=structured, _meta=_label(result)
    )
    size = len(made.__pydantic_serializer__.to_json(made))
    if size > max_bytes:
        raise ToolExecutionError(
            f"{result.name} was called and took effect, but its result has {size} "
            f"bytes, more than the {max_bytes} that are sent",
            hint="ask for less at once, or let a program read it and return a part",
            details={"reason": "result_too_large", "bytes": size},
        )
    return made


def _part(part: Part) -> types.ContentBlock:
    if isinstance(part, ImagePart):
        return types.ImageContent(data=part.data, mime_type=part.mime)
    return types.TextContent(text=part.text)


def failure(
    envelope: Mapping[str, Any], result: ToolResult | None = None
) -> types.CallToolResult:
    """Return an error that the model can read."""
    text = json.dumps(envelope, ensure_ascii=False)
    return types.CallToolResult(
        content=[types.TextContent(text=text)],
        is_error=True,
        _meta={ERROR_META: dict(envelope)} | ({} if result is None else _label(result)),
    )


def _label(result: ToolResult) -> dict[str, Any]:
    call = {"id": result.call_id, "tool": result.name, "status": result.status}
    return {CALL_META: {**call, "usage": dict(result.usage)}}


def error_envelope(error: ErrorInfo) -> dict[str, Any]:
    """Return `{code, message, field?, retryable, retry_after_ms?, ...}`.

    It also has `rule`, `reason`, `outcome` and `approval_id` where the error's details
    name them.
    """
    details = error.details
    message = f"{error.message} ({error.hint})" if error.hint else error.message
    envelope: dict[str, Any] = {
        "code": error.kind,
        "message": message,
        "retryable": error.retryable,
    }
    problems = details.get("problems")
    if isinstance(problems, list) and problems and isinstance(problems[0], dict):
        envelope["field"] = problems[0].get("field")
    wait = details.get("retry_after")
    if isinstance(wait, int | float):
        envelope |= {"retryable": True, "retry_after_ms": math.ceil(wait * 1000)}
    for name in ("rule", "reason", "outcome", "approval_id"):
        if isinstance(details.get(name), str):
            envelope[name] = details[name]
    return envelope
