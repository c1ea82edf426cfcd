"""Differences between encoded values: pure functions on JSON texts.

A field is stored in pieces: a list by element, an object by key, anything else whole.
Pieces are compared as bytes, so a patch is exact, and reading one runs no user's code.

A patch of a field is `["=", value]` (replaced), `["+", n, [values]]` (the first n
elements stay, then these) or `["~", {key: value}, [keys gone]]` (one level of an
object).
"""

from __future__ import annotations

from typing import Any

from ..values.json_values import json_bytes, read_json_bytes

Pieces = bytes | tuple[bytes, ...] | dict[str, bytes]


def split(value: Any) -> Pieces:
    """Return a JSON value in pieces. Raises ValueError."""
    if isinstance(value, list):
        return tuple(map(json_bytes, value))
    if isinstance(value, dict):
        return {key: json_bytes(value[key]) for key in sorted(value)}
    return json_bytes(value)


def join(pieces: Pieces) -> bytes:
    """Return the JSON text of pieces."""
    if isinstance(pieces, bytes):
        return pieces
    if isinstance(pieces, tuple):
        return b"[" + b",".join(pieces) + b"]"
    return b"{" + b",".join(_entry(*item) for item in pieces.items()) + b"}"


def _entry(key: str, text: bytes) -> bytes:
    return json_bytes(key) + b":" + text


def size_of(pieces: Pieces) -> int:
    """Return how many bytes the pieces have."""
    if isinstance(pieces, bytes):
        return len(pieces)
    return sum(map(len, pieces if isinstance(pieces, tuple) else pieces.values()))


def diff(old: Pieces, new: Pieces) -> bytes | None:
    """Return the JSON text of what makes one value another; None: they are the same."""
    if old is new or old == new:
        return None
    if isinstance(old, tuple) and isinstance(new, tuple):
        same = _common(old, new)
        if same:
            return b'["+",%d,%s]' % (same, join(new[same:]))
    if isinstance(old, dict) and isinstance(new, dict):
        changed = {k: v for k, v in new.items() if old.get(k) != v}
        if len(changed) < len(new):
            gone = json_bytes([key for key in old if key not in new])
            return b'["~",%s,%s]' % (join(changed), gone)
    return b'["=",%s]' % join(new)


def _common(old: tuple[bytes, ...], new: tuple[bytes, ...]) -> int:
    if new[: len(old)] == old:
        return len(old)
    pairs = enumerate(zip(old, new, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(old), len(new)))


def apply(old: Pieces | None, patch: Any) -> Pieces:
    """Return the value that a patch makes of an older one.

    Args:
        old: None where there was none.
        patch: What `diff` wrote, read as JSON.

    Raises:
        ValueError: It is no patch of that value.
    """
    match patch:
        case ["=", value]:
            return split(value)
        case ["+", int(same), list(tail)] if isinstance(old, tuple):
            if 0 <= same <= len(old):
                return old[:same] + tuple(map(json_bytes, tail))
        case ["~", dict(changed), list(gone)] if isinstance(old, dict):
            if all(isinstance(key, str) and key in old for key in gone):
                left = {k: v for k, v in old.items() if k not in gone}
                left |= {key: json_bytes(value) for key, value in changed.items()}
                return dict(sorted(left.items()))
    raise ValueError("a patch does not fit what it changes")


def value_of(pieces: Pieces) -> Any:
    """Return pieces as a JSON value."""
    return read_json_bytes(join(pieces))
