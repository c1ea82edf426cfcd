"""Text of untrusted origin, made fit for a terminal, for people and for models."""

from __future__ import annotations

import re
import unicodedata

# What a terminal would obey rather than show: C0 but newline and tab, DEL, C1,
# and the marks that reorder text.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def safe(text: str) -> str:
    """Return text with what a terminal would obey written as visible escapes."""
    return _UNSAFE.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


# Control and format characters, halves of surrogate pairs, private and unassigned
# ones, and separators that break lines: nobody sees them, models and terminals obey.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SPACES = "\n\r\t"
_CUT = " [cut]"


def shown(text: str, longest: int) -> str:
    """Return text with what would not be seen written out as `\\u{1b}`.

    Args:
        text: What a server wrote.
        longest: Characters. When it is reached the rest is left out, and ` [cut]`
            stands in its place.
    """
    # What is left out is not looked at either.
    seen = "".join(map(_seen, text[: longest + 1]))
    return seen if len(seen) <= longest else seen[: longest - len(_CUT)] + _CUT


def has_hidden(text: str) -> bool:
    """Return whether there is a character in it that nobody would see."""
    return any(_is_hidden(each) and each not in _SPACES for each in text)


def _seen(character: str) -> str:
    is_seen = character == "\n" or not _is_hidden(character)
    return character if is_seen else f"\\u{{{ord(character):x}}}"


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN
