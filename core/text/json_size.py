"""Counts the values of a JSON text without parsing it."""

from __future__ import annotations

_STRUCTURE = (b",", b"[", b"{")


def count_values(text: bytes, limit: int) -> int:
    """Return how many values a JSON text holds, or any number above `limit`.

    Reading a text, and all that is done with what was read, costs as much as it holds
    values: seconds for one megabyte of `[],[],[]`. Counting costs milliseconds. An
    empty list or object counts as two values.

    Args:
        text: In UTF-8. What is no JSON counts as far as it would be read.
        limit: The number above which the answer need not be exact.
    """
    found = 0
    # A text of nothing but values shows it in its first part.
    for part in (text[: 4 * limit], text):
        found = 1 + _signs(part)
        if found > limit:
            found = _count(part, limit)
        if found > limit:
            break
    return found


def _count(text: bytes, limit: int) -> int:
    """Return the same without what is inside of texts."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    quotes = text.count(b'"')
    # A value has four at most, with its key's. Those in texts are gone by now.
    if quotes > 4 * limit:
        return limit + 1
    return 1 + _signs(b"".join(text.split(b'"')[::2]))


def _signs(text: bytes) -> int:
    return sum(map(text.count, _STRUCTURE))
