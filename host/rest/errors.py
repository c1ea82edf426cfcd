"""Errors that clients are answered with, as HTTP statuses and one kind of body."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from starlette.responses import Response

from toolcell.core import (
    ErrorInfo,
    GuardDeniedError,
    InvalidInputError,
    StoreUnavailableError,
    ToolcellError,
)

from ..http.bodies import BodyError
from ..runtime.active_calls import BusyError
from .bodies import Problem

RETRY_SECONDS = 1.0
"""Seconds after which a client may try again where the server was busy."""

_log = logging.getLogger("toolcell.host")


class RequestRefusedError(ToolcellError):
    """A request that is not answered as it asks.

    Args:
        status: The HTTP status of the answer.
        reason: What is wrong, as one word for machines; in `details`.
        message: What is wrong, for people.
        hint: Advice for the caller.
        retry_after: Seconds after which the same request may succeed; default never.
        headers: Further headers of the answer.
    """

    kind = "request.refused"

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        hint: str | None = None,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        details: dict[str, str | float] = {"reason": reason}
        if retry_after is not None:
            details["retry_after"] = retry_after
        super().__init__(message, hint=hint, details=details)
        self.status = status
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))


class InvalidRequestError(InvalidInputError):
    """A query or body that does not have the form of the OpenAPI document."""


def answer_of(error: Exception) -> Response:
    """Return the answer that shows an error; ours are logged and not shown."""
    match error:
        case RequestRefusedError():
            return _answer(error.status, error, error.headers)
        case BodyError():
            # What is left of it is not read.
            return _answer(error.status, error, {"Connection": "close"})
        case InvalidRequestError():
            return _answer(422, error)
        case InvalidInputError():
            return _answer(409, error)
        case GuardDeniedError():
            return _answer(403, error)
        case BusyError() | StoreUnavailableError():
            return _answer(503, error, {"Retry-After": str(math.ceil(RETRY_SECONDS))})
    _log.error("a request failed", exc_info=error)
    shown = ToolcellError(
        "the server failed", hint="its log says why; tell its operator"
    )
    return _answer(500, shown)


def _answer(
    status: int, error: ToolcellError, headers: Mapping[str, str] | None = None
) -> Response:
    body = Problem(error=ErrorInfo.of(error)).model_dump_json()
    return Response(body, status, headers, media_type="application/json")
