"""The value of a program's last expression, as it appears in the report."""

from __future__ import annotations

import json

from ..wire.contract import MAX_RESULT_VALUES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Tuple


MAX_RESULT_BYTES = 1024 * 1024
MAX_REPR = 1024
"""Characters of the text of a value in a report. When it is reached the rest is left
out there, and the value is an output, too, if it fits into one."""

_MAX_JSON_BYTES = MAX_RESULT_BYTES // 2
_MAX_DEPTH = 102
_SCALARS = (str, bool, int, float, type(None))
# Values that need no check: most programs end with one.
_PLAIN = (int, bool, type(None))
_COMMON = 2**53
_json: Any = json.encoder
_pieces = _json.c_make_encoder(
    None, None, _json.encode_basestring, None, ":", ",", False, False, False
)


def as_json(value: Any) -> str:
    """Return JSON, made by C alone: programs may replace what the rest of `json` uses.

    Raises:
        ValueError: A number in it has no such form.
        RecursionError: It is too deep.
    """
    return "".join(_pieces(value, 0))


def type_name(value: object) -> str:
    kind = type(value)
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def report(value: Any) -> Tuple[dict[str, Any], int]:
    """Return the value if it is JSON of bounded size, else its type and short repr.

    With it comes the number of characters of a text whose beginning alone is in it,
    otherwise 0.
    """
    if type(value) in _PLAIN and abs(value or 0) < _COMMON:
        return {"json": value}, 0
    if _is_short(value):
        return {"json": value}, 0
    try:
        text = repr(value)
    except Exception:
        text = object.__repr__(value)
    size = len(text) if len(text) >= MAX_REPR else 0
    return {"type": type_name(value), "repr": text[:MAX_REPR]}, size


def _is_short(value: Any) -> bool:
    """Return True if JSON would restore this value, and is short enough in UTF-8."""
    try:
        return _is_json(value) and len(as_json(value).encode()) <= _MAX_JSON_BYTES
    except Exception:
        # A number is too long or infinite, or a text has half of a surrogate pair.
        return False


def _is_json(value: Any) -> bool:
    """Return True if JSON would restore this value, and its size and depth are bounded.

    Tuples and keys that are not strings would come back as something else.
    """
    room = MAX_RESULT_VALUES
    level = [value]
    for _ in range(_MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            kind = type(item)
            if kind in _SCALARS:
                continue
            if kind is dict and all(type(key) is str for key in item):
                item = item.values()
            elif kind is not list:
                return False
            # As the host counts: an empty container is two values.
            room -= len(item) or 1
            if room < 0:
                return False
            inner += item
        if not inner:
            return True
        level = inner
    return False
