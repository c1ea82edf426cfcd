"""The value of a program's last expression, as its report tells it."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


MAX_RESULT_BYTES = 1024 * 1024
_MAX_REPR = 1024
# Values that need no look: most programs end with one.
_PLAIN = (int, bool, type(None))
_COMMON = 2**53


def type_name(value: object) -> str:
    kind = type(value)
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def report(value: Any) -> dict[str, Any]:
    """Return the value if it is plain JSON, else its type and a short repr."""
    if type(value) in _PLAIN and abs(value or 0) < _COMMON:
        return {"json": value}
    if _is_json(value):
        try:
            text = json.dumps(value, allow_nan=False)
            if len(text) <= MAX_RESULT_BYTES // 2 and "\\ud" not in text:
                return {"json": value}
            text = json.dumps(value, allow_nan=False, ensure_ascii=False)
            if len(text.encode("utf-8")) <= MAX_RESULT_BYTES // 2:
                return {"json": value}
        except (ValueError, RecursionError):
            pass
    try:
        text = repr(value)
    except Exception:
        text = object.__repr__(value)
    return {"type": type_name(value), "repr": text[:_MAX_REPR]}


def _is_json(value: Any, depth: int = 0) -> bool:
    """Tell whether JSON gives this value back: no tuples, no int keys."""
    kind = type(value)
    if kind in (str, bool, int, float) or value is None:
        return True
    if depth > 100:
        return False
    if kind is list:
        return all(_is_json(item, depth + 1) for item in value)
    if kind is dict:
        return all(
            type(key) is str and _is_json(item, depth + 1)
            for key, item in value.items()
        )
    return False
