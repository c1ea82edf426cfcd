"""JSON as all of its readers read it: what they could read in two ways is refused."""

from __future__ import annotations

import json
from typing import Any


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def read_json(data: bytes) -> Any:
    """Return a JSON value in UTF-8.

    Raises:
        ValueError: It is none, holds NaN or an infinity, gives a key twice, or is
            nested too deeply.
    """
    try:
        return json.loads(
            data.decode(), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
