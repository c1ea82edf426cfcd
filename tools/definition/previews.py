"""A tool's own words about what a call would do, for people who approve it."""

from __future__ import annotations

import inspect
import logging
from functools import partial

import anyio
import anyio.to_thread

from toolcell.core import ToolCall

from .tool import Tool

PREVIEW_SECONDS = 1.0
"""Seconds for a preview. When it is reached people see the arguments alone."""

_log = logging.getLogger("toolcell.tools")


async def preview_of(tool: Tool, call: ToolCall) -> str:
    """Return the preview of a call; empty if there is none, or it fails.

    Args:
        tool: The tool.
        call: The call, with valid arguments.
    """
    if tool.preview is None:
        return ""
    # What the preview does to its values does not reach the call.
    make = partial(tool.preview, **tool.validate(call.arguments).values)
    try:
        with anyio.fail_after(PREVIEW_SECONDS):
            if inspect.iscoroutinefunction(tool.preview):
                text = await make()
            else:
                text = await anyio.to_thread.run_sync(make, abandon_on_cancel=True)
        if not isinstance(text, str):
            raise TypeError
    except Exception as error:  # noqa: BLE001 - whatever it raises, people are asked
        _log.warning("no preview of %s: %s", tool.name, type(error).__name__)
        return ""
    return text
