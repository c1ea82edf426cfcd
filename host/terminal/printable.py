"""Text of untrusted origin, made harmless for a terminal."""

from __future__ import annotations

import re

# What a terminal would obey rather than show: C0 but newline and tab, DEL, C1,
# and the marks that reorder text.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def safe(text: str) -> str:
    """Return text with what a terminal would obey written as visible escapes."""
    return _UNSAFE.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
