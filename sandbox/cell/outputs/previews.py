"""Small copies of large pictures, for models.

They are made where the picture was made, so that nothing outside decodes a picture.
"""

from __future__ import annotations

import binascii
import importlib
import io
import struct

from ..wire.contract import MAX_PREVIEW_BYTES, MAX_PREVIEW_SIDE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Tuple


_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
# JPEGs are decoded at a fraction of their size, others whole: 128 MiB, with alpha.
_MAX_PIXELS = 1 << 25
_QUALITY = 80
_SMALLEST_SIDE = 64


def preview_of(texts: Dict[str, str]) -> Optional[Tuple[str, str]]:
    """Return the type and base 64 of a small copy; None if none is needed, or possible.

    Args:
        texts: Representations by media type; pictures are in base 64.
    """
    for mime in _TYPES:
        if mime in texts:
            try:
                data = binascii.a2b_base64(texts[mime])
                return None if _is_small(mime, data) else _scaled(data)
            except Exception:
                return None
    return None


def _is_small(mime: str, data: bytes) -> bool:
    if mime != "image/png" or len(data) > MAX_PREVIEW_BYTES:
        return False
    return bool(max(struct.unpack(">II", data[16:24])) <= MAX_PREVIEW_SIDE)


def _scaled(data: bytes) -> Optional[Tuple[str, str]]:
    # Where matplotlib is, Pillow is.
    pillow: Any = importlib.import_module("PIL.Image")
    with pillow.open(io.BytesIO(data)) as image:
        small = max(image.size) <= MAX_PREVIEW_SIDE and len(data) <= MAX_PREVIEW_BYTES
        if small and image.format in ("JPEG", "PNG"):
            return None
        side = MAX_PREVIEW_SIDE
        image.draft(None, (side, side))
        if image.width * image.height > _MAX_PIXELS:
            return None
        copy = _of_8_bits(image, side)
        while side >= _SMALLEST_SIDE:
            copy.thumbnail((side, side))
            for kind in ("PNG", "JPEG"):
                found = _saved(pillow, copy, kind)
                if len(found) <= MAX_PREVIEW_BYTES:
                    text = binascii.b2a_base64(found, newline=False).decode()
                    return "image/" + kind.lower(), text
            side //= 2
    return None


def _of_8_bits(image: Any, side: int) -> Any:
    """Return a picture of at most `side` pixels in RGB or RGBA."""
    mode = "RGBA" if _has_alpha(image) else "RGB"
    if image.mode in ("1", "P"):
        # Only colors can be blended.
        return image.convert(mode)
    image.thumbnail((side, side))
    if image.mode.startswith("I"):
        # Gray of 16 bits, which a conversion would cut off.
        image = image.point(lambda value: value / 256)
    return image.convert(mode)


def _has_alpha(image: Any) -> bool:
    return image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info


def _saved(pillow: Any, image: Any, kind: str) -> bytes:
    if kind == "JPEG" and image.mode == "RGBA":
        white = pillow.new("RGBA", image.size, "white")
        image = pillow.alpha_composite(white, image).convert("RGB")
    buffer = io.BytesIO()
    image.save(buffer, kind, **({"quality": _QUALITY} if kind == "JPEG" else {}))
    return buffer.getvalue()
