"""Types of pictures, read from their first bytes; nothing is decoded."""

from __future__ import annotations

from typing import Literal

PictureType = Literal["image/png", "image/jpeg", "image/gif", "image/webp"]


def picture_type(data: bytes) -> PictureType | None:
    """Return the media type that the first bytes show; None for no known picture."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return None
