"""One writing of each JSON value: what is hashed or compared is written here."""

from __future__ import annotations

import hashlib
import json

_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode


def canonical_json(value: object) -> bytes:
    """Return a JSON value as UTF-8, with sorted keys and no spaces.

    Equal values give the same bytes, whatever the order of their keys. Numbers are
    written as Python writes them: 1 and 1.0 are two values.

    Raises:
        ValueError: It holds NaN, an infinity, half a surrogate pair or a circle.
        TypeError: It holds an object that is not JSON.
        RecursionError: It is nested too deeply.
    """
    return _encode(value).encode()


def canonical_digest(value: object) -> str:
    """Return the SHA-256 of the canonical bytes, in hexadecimal.

    Raises:
        ValueError, TypeError, RecursionError: As `canonical_json`.
    """
    return hashlib.sha256(canonical_json(value)).hexdigest()
