"""Reads JSON-RPC messages; JSON that two parsers could read differently is refused."""

from __future__ import annotations

from typing import Any

from toolcell.core.text.json_size import count_values
from toolcell.core.text.strict_json import read_json


class TooLargeError(ValueError):
    """A JSON text has more values than the limit."""


def read_message(data: bytes, max_values: int) -> Any:
    """Return a client's message; the library parses it again, with the same result.

    Args:
        data: JSON in UTF-8.
        max_values: Values of a message. When it is reached the message is not parsed.

    Raises:
        TooLargeError: It has more values.
        ValueError: It is not JSON, or ambiguous, such as a repeated key.
    """
    if count_values(data, max_values) > max_values:
        raise TooLargeError(f"more than {max_values} values")
    return read_json(data)


def is_request(message: Any) -> bool:
    """Return True if a message is a request, which needs an answer.

    Raises:
        ValueError: Its id is neither text nor an integer.
    """
    if not isinstance(message, dict) or not {"id", "method"} <= message.keys():
        return False
    if type(message["id"]) not in (str, int):
        raise ValueError("an id is text or a whole number")
    return True
