"""Messages of JSON-RPC: which of them need an answer, and answers that refuse."""

from __future__ import annotations

import math
from typing import Any

import mcp_types as types
from starlette.responses import JSONResponse

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


def refused(
    status: int,
    reason: str,
    message: str,
    *,
    code: int = types.INTERNAL_ERROR,
    request_id: str | int | None = None,
    retry_after: float | None = None,
) -> JSONResponse:
    """Return the answer to a message that was not looked at.

    Args:
        status: The HTTP status.
        reason: Why, as one word for machines.
        message: Why, for people.
        code: The error's number in JSON-RPC.
        request_id: The request's id, if it was read.
        retry_after: Seconds after which the same message may succeed; default never.
    """
    data: dict[str, str | float] = {"reason": reason}
    headers = {}
    if retry_after is not None:
        data["retry_after"] = retry_after
        headers["Retry-After"] = str(max(1, math.ceil(retry_after)))
    error = {"code": code, "message": message, "data": data}
    body = {"jsonrpc": "2.0", "id": request_id, "error": error}
    return JSONResponse(body, status, headers)
