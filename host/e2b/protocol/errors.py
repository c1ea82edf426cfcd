"""Errors that clients are answered with, as HTTP statuses and Connect codes."""

from __future__ import annotations

import logging
import math
from typing import Any

from starlette.responses import JSONResponse

from toolcell.core import (
    CellLostError,
    GuardDeniedError,
    InvalidInputError,
    SandboxUnavailableError,
    StoreUnavailableError,
    ToolcellError,
)
from toolcell.tools.spi import CallCancelledError

from ...http.bodies import BodyError

_log = logging.getLogger("toolcell.host")

CODES = {
    400: "invalid_argument",
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    408: "deadline_exceeded",
    409: "already_exists",
    413: "resource_exhausted",
    429: "resource_exhausted",
    499: "canceled",
    500: "internal",
    501: "unimplemented",
    502: "unavailable",
    503: "unavailable",
    504: "deadline_exceeded",
    507: "resource_exhausted",
}
"""The code of the Connect protocol for each status that is answered."""

RETRY_SECONDS = 1.0
"""Seconds after which a client may try again where the server had no room."""

_LIMITS = {"rate_limited", "concurrency", "turn_limit", "budget_exceeded"}
_FILES = {
    "missing": 404,
    "denied": 403,
    "exists": 409,
    "too_large": 413,
    "no_space": 507,
    "too_many": 429,
}


class APIError(Exception):
    """An answer that is an error.

    Args:
        status: The HTTP status.
        message: What went wrong, for people.
        sandbox_id: The sandbox that it is about, if answers name it.
        reason: Why, as one word for machines.
        retry_after: Seconds after which the same request may succeed; default never.
    """

    def __init__(
        self,
        status: int,
        message: str,
        sandbox_id: str = "",
        *,
        reason: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.sandbox_id = sandbox_id
        self.retry_after = retry_after
        facts = {"reason": reason, "retry_after": retry_after}
        self._facts = {key: fact for key, fact in facts.items() if fact is not None}

    @property
    def code(self) -> str:
        """The code of the Connect protocol."""
        return CODES.get(self.status, "unknown")

    @property
    def kind(self) -> str:
        """The kind of the error in records."""
        return self.code

    def to_json(self) -> dict[str, Any]:
        """Return the body of an answer to a request of the control plane."""
        about = {"sandboxId": self.sandbox_id} if self.sandbox_id else {}
        return {**about, "code": self.status, "message": self.message, **self._facts}

    def to_connect(self) -> dict[str, Any]:
        """Return the body of an answer to a remote procedure call."""
        return {"code": self.code, "message": self.message, **self._facts}

    def answer(self, body: dict[str, Any]) -> JSONResponse:
        """Return the answer to a request, with one of the two bodies."""
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after)))
        return JSONResponse(body, self.status, headers)


def gone(sandbox_id: str = "") -> APIError:
    """Return the answer about a sandbox that has ended; clients look for its words."""
    return APIError(502, "The sandbox was not found", sandbox_id)


def as_api_error(error: Exception) -> APIError:
    """Return what a client gets of an error; ours are logged and not shown."""
    match error:
        case APIError():
            return error
        case BodyError():
            reason = str(error.details["reason"])
            return APIError(error.status, error.message, reason=reason)
        case CellLostError():
            return gone()
        case GuardDeniedError():
            reason = str(error.details.get("reason", ""))
            return APIError(
                429 if reason in _LIMITS else 403,
                _words(error),
                reason=reason or None,
                retry_after=error.details.get("retry_after"),
            )
        case InvalidInputError():
            reason = str(error.details.get("reason", ""))
            status = _FILES.get(reason, 400)
            return APIError(status, _words(error), reason=reason or None)
        case SandboxUnavailableError() | StoreUnavailableError():
            return APIError(
                503, _words(error), reason="unavailable", retry_after=RETRY_SECONDS
            )
        case CallCancelledError():
            return APIError(499, _words(error))
        case ToolcellError():
            return APIError(500, _words(error))
    _log.error("a request failed", exc_info=error)
    return APIError(500, "the server failed; its log says why")


def _words(error: ToolcellError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message
