"""JSON-RPC as all of its readers read it: what has two meanings is refused."""

from __future__ import annotations

import json
from typing import Any

from toolcell.core import count_values


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class TooLargeError(ValueError):
    """A JSON text holds more values than may be."""


def read_json(data: bytes, max_values: int) -> Any:
    """Return a JSON value in UTF-8.

    Args:
        data: Its text.
        max_values: How many values it may hold; beyond that it is not read.

    Raises:
        TooLargeError: It holds more.
        ValueError: It is none, holds NaN or an infinity, gives a key twice, or is
            nested too deeply.
    """
    if count_values(data, max_values) > max_values:
        raise TooLargeError(f"more than {max_values} values")
    try:
        return json.loads(
            data.decode(), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_request(message: Any) -> bool:
    """Tell whether a message wants an answer.

    Raises:
        ValueError: Its id is none that a request may have, so no notification either.
    """
    if not isinstance(message, dict) or not {"id", "method"} <= message.keys():
        return False
    if type(message["id"]) not in (str, int):
        raise ValueError("an id is text or a whole number")
    return True
