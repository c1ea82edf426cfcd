"""Tells requests, which need an answer, from the other messages of JSON-RPC."""

from __future__ import annotations

from typing import Any

from ..http.bodies import BodyError


def is_request(message: Any) -> bool:
    """Return True if a message is a request, which needs an answer.

    Raises:
        BodyError: Its id is neither text nor an integer.
    """
    if not isinstance(message, dict) or not {"id", "method"} <= message.keys():
        return False
    if type(message["id"]) not in (str, int):
        raise BodyError("not_json", "an id is text or a whole number")
    return True
