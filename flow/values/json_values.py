"""JSON that shares nothing with the caller, and always has the same text."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from pydantic import BeforeValidator, JsonValue
from pydantic_core import from_json, to_jsonable_python

_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode

# Integers below this have few digits.
_QUICK = 2**63


def json_bytes(value: Any) -> bytes:
    """Return a JSON value as text in UTF-8, with sorted keys.

    Raises:
        ValueError: It holds NaN, an infinity, half a surrogate pair or a number of more
            than 4,300 digits (Python's own bound, without which reading it would take
            quadratic time), is no JSON value, or is nested too deeply.
    """
    if type(value) is int:
        # The encoder has a quick way for texts alone.
        return b"%d" % value
    try:
        return _encode(value).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except TypeError as error:
        raise ValueError(str(error)) from None


def read_json_bytes(text: bytes) -> Any:
    """Return the value of a text that `json_bytes` wrote. Raises ValueError."""
    return from_json(text, allow_inf_nan=False)


def jsonable(value: Any) -> Any:
    """Return a value as JSON that shares nothing with it; models become objects.

    Raises:
        ValueError: It has no JSON form.
    """
    if value is None or type(value) is bool:
        return value
    if type(value) is int and -_QUICK < value < _QUICK:
        return value
    return read_json_bytes(json_bytes(to_jsonable_python(value)))


def digest(value: Any, length: int = 16) -> str:
    """Return hexadecimal digits that are the same for the same JSON value."""
    return hashlib.sha256(json_bytes(value)).hexdigest()[:length]


Json = Annotated[JsonValue, BeforeValidator(jsonable)]
JsonObject = Annotated[dict[str, JsonValue], BeforeValidator(jsonable)]
