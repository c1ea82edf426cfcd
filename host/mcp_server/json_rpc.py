"""JSON-RPC as all of its readers read it: what has two meanings is refused."""

from __future__ import annotations

from typing import Any

from toolcell.core.text.json_size import count_values
from toolcell.core.text.strict_json import read_json


class TooLargeError(ValueError):
    """A JSON text holds more values than may be."""


def read_message(data: bytes, max_values: int) -> Any:
    """Return what a client sent; the library may read it again, and reads the same.

    Args:
        data: JSON in UTF-8.
        max_values: How many values it may hold; beyond that it is not read.

    Raises:
        TooLargeError: It holds more.
        ValueError: It is not JSON that has one meaning.
    """
    if count_values(data, max_values) > max_values:
        raise TooLargeError(f"more than {max_values} values")
    return read_json(data)


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
