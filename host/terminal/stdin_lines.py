"""Reads lines from standard input without a thread, which could not be stopped."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator

import anyio

_CHUNK = 65_536
MAX_LINE_BYTES = 1_048_576
"""Length of a line in bytes. When it is reached the part so far counts as a line."""


async def stdin_lines(descriptor: int = 0) -> AsyncGenerator[str, None]:
    """Yield lines as they come, without line ends, until the input ends."""
    rest = b""
    while data := await _read(descriptor):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        for line in lines:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


async def _read(descriptor: int) -> bytes:
    try:
        await anyio.wait_readable(descriptor)
    except PermissionError:
        # A plain file is always ready.
        await anyio.lowlevel.checkpoint()
    return os.read(descriptor, _CHUNK)
