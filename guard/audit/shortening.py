"""Records that are too long for a line: their long fields are left out."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from ..values.call_facts import ascii_json

FIELD_BYTES = 2_048
"""Largest field of a line that is too long, in bytes. When it is reached, the size and
the hash of the field take its place."""

DELETE = "\\u007f"
"""The escape of the one character that is ASCII, unprintable, and bare in JSON."""


def shortened(members: str) -> str:
    """Return the members of a record, as JSON text, without its long fields."""
    fields = json.loads(f"{{{members}}}")
    small = {name: _small(value) for name, value in fields.items()}
    return _printable_json(small)[1:-1]


def _small(value: Any) -> Any:
    text = _printable_json(value)
    if len(text) <= FIELD_BYTES:
        return value
    digest = sha256(text.encode("ascii")).hexdigest()
    return f"[{len(text)} bytes left out, sha256 {digest}]"


def _printable_json(value: Any) -> str:
    return ascii_json(value).replace("\x7f", DELETE)
