"""Reads JSON that every parser understands in the same way.

What RFC 8259 leaves to its readers is decided here, once. `sandbox/cell/wire/frames.py`
has the same for cells, where there is nothing but the standard library.
"""

from __future__ import annotations

import json
import math
import sys
from itertools import accumulate
from typing import Any

MAX_DEPTH = 128
"""Lists and objects inside each other. When it is reached the text is refused."""

MAX_DIGITS = 4300
"""Digits of a whole number. When it is reached the text is refused."""


def read_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Args:
        text: One value, with white space around it at most; bytes are UTF-8 without a
            byte order mark.

    Raises:
        ValueError: It is no JSON, gives a key twice, has NaN, an infinity, a number
            out of range or half a surrogate pair, or is nested too deeply.
    """
    if isinstance(text, bytes):
        data, text = text, text.decode()
    else:
        data = text.encode()
    try:
        if _is_deep(data):
            raise RecursionError
        value = _decoder.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if "\\u" in text:
        # Half a pair decodes from its escape, but can be written nowhere.
        _encode_texts(value)
    return value


def _encode_texts(value: Any) -> None:
    """Encode each text, quicker than JSON is written. Raises ValueError."""
    found = [value]
    # What is found grows while it is read.
    for item in found:
        if isinstance(item, str):
            item.encode()
        elif isinstance(item, dict):
            found += item
            found += item.values()
        elif isinstance(item, list):
            found += item


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _whole(text: str) -> int:
    if len(text) - text.startswith("-") > MAX_DIGITS:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is out of range")
    return number


def _is_deep(text: bytes) -> bool:
    """Return True if a text is nested too deeply to be parsed.

    At the parser's own limit Python may finalize other objects, and fails at that.
    """
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(text.split(b'"')[::2]).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, outside)), default=0) > MAX_DEPTH


_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in _STEPS)
_decoder = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_constant=_no_constant,
    parse_float=_finite,
    # Python has this limit by default, so numbers need not be counted here.
    parse_int=int if sys.get_int_max_str_digits() == MAX_DIGITS else _whole,
)
