"""Numbers in the addresses of pages."""

from __future__ import annotations

from ..web.visit import ActionRefusedError


def read_number(text: str) -> int:
    """Return a number of 1 to 15 digits.

    Raises:
        ActionRefusedError: 404: it is not a number.
    """
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise ActionRefusedError(404, "there is no such page")
    return int(text)
