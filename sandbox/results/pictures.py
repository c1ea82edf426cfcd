"""Sizes of pictures, read from their first bytes; nothing is decoded."""

from __future__ import annotations

import struct

from toolcell.core.text.picture_type import picture_type

_MAX_SEGMENTS = 1_000
# Start of frame: all but the tables and extensions between them.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def picture_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG or JPEG in pixels; None if they are not told."""
    kind = picture_type(data)
    if kind == "image/png" and data[12:16] == b"IHDR" and len(data) >= 24:
        width, height = struct.unpack(">II", data[16:24])
        return width, height
    return _jpeg_size(data) if kind == "image/jpeg" else None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    for _ in range(_MAX_SEGMENTS):
        if len(data) < at + 9 or data[at] != 0xFF:
            return None
        if data[at + 1] in _FRAMES:
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + max(int.from_bytes(data[at + 2 : at + 4], "big"), 2)
    return None
