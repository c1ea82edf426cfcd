"""One request inside of HTTPS, and what became of it."""

from __future__ import annotations

import h11
from pydantic import JsonValue

from ..credentials.masking import Mask
from .attempt import Attempt
from .http_request import UNSEARCHABLE, HTTPRequest


class Exchange:
    """One request and its answer."""

    def __init__(self, attempt: Attempt, request: HTTPRequest) -> None:
        self._attempt = attempt
        self._request = request
        self._began = attempt.bytes_in, attempt.bytes_out
        self.status: int | None = None
        self.is_reached = False
        """True once the server has proved its name, and the head for it is made."""

        self.is_sent = False
        """True once the server was sent all of the request."""
        self.mask = Mask({})

    def outcome(self) -> dict[str, JsonValue]:
        """Return what became of it, for the gate that admitted it."""
        told = self._attempt.outcome()
        told.pop("status", None)
        if self.status is not None:
            told["status"] = self.status
        if self._request.used and self.is_reached:
            told["used"] = list(self._request.used)
        came, went = self._began
        told["bytes_in"] = self._attempt.bytes_in - came
        told["bytes_out"] = self._attempt.bytes_out - went
        return told

    def shown(self, answer: h11.Response) -> h11.Response:
        """Return the head of an answer as the program may see it.

        Raises:
            NoAnswerError: Its body cannot be searched for credentials.
        """
        self.mask.refresh()
        if not self.mask.hides:
            return answer
        is_coded = any(
            name == b"content-encoding" and value.lower() not in (b"", b"identity")
            for name, value in answer.headers
        )
        if is_coded or answer.status_code == 206:
            raise NoAnswerError(UNSEARCHABLE)
        whole = self.mask.whole
        headers = answer.headers.raw_items()
        return h11.Response(
            status_code=answer.status_code,
            headers=[(whole(name), whole(data)) for name, data in headers],
            reason=whole(answer.reason),
        )


class NoAnswerError(Exception):
    """The server gives no answer that can be passed on."""
