"""Arguments of calls that were never made, as records keep them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

REFUSED_BYTES = 4_096
"""Bytes of arguments, as JSON, in the record of a call that was refused. When it is
reached the largest are left out: who is refused must not fill the disk."""

LEFT_OUT = "(left out)"
"""The name under which a record tells how much of the arguments it has not."""


def bounded(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments, or as many as fit and the size and hash of all."""
    text = _json(arguments)
    if len(text) <= REFUSED_BYTES:
        return arguments
    kept: dict[str, Any] = {}
    room = REFUSED_BYTES
    for name, value in arguments.items():
        size = len(_json({name: value}))
        if size <= room:
            kept[name] = value
            room -= size
    digest = sha256(text.encode()).hexdigest()
    kept[LEFT_OUT] = f"the arguments have {len(text)} bytes, sha256 {digest}"
    return kept


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
