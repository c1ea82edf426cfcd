"""One request, its answer made anew for the program, and what became of it."""

from __future__ import annotations

import h11
from pydantic import JsonValue

from toolcell.core.event_loop import SmallParts

from ..credentials.masking import Mask
from .attempt import Attempt
from .http_request import HTTPRequest, ResponseHead
from .types import PlainAnswer

_NOT_PASSED_ON = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"trailer", b"upgrade")
)
_PARTS = (206, 226)
_UNSEARCHABLE = (
    "the server's answer is compressed, or a piece, and cannot be searched for "
    "credentials"
)


class Exchange:
    """One request and its answer.

    Args:
        attempt: The connection of the request.
        request: It.
        is_last: The connection closes after it.
    """

    def __init__(
        self, attempt: Attempt, request: HTTPRequest, *, is_last: bool = False
    ) -> None:
        self._is_last = is_last
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
        outcome = self._attempt.outcome()
        outcome.pop("status", None)
        if self.status is not None:
            outcome["status"] = self.status
        if self._request.used and self.is_reached:
            outcome["used"] = list(self._request.used)
        came, went = self._began
        outcome["bytes_in"] = self._attempt.bytes_in - came
        outcome["bytes_out"] = self._attempt.bytes_out - went
        return outcome

    def written(self, event: object) -> bytes:
        """Return the bytes for the program that an event of the server makes.

        Raises:
            NoAnswerError: The body of the answer cannot be searched for credentials.
            h11.ProtocolError: The event belongs to no answer.
        """
        writer = self._request.reader
        if isinstance(event, h11.InformationalResponse):
            if writer.their_http_version == b"1.0":
                return b""
            interim = h11.InformationalResponse(
                status_code=event.status_code, headers=[], reason=b""
            )
            return writer.send(interim) or b""
        if isinstance(event, h11.Response):
            data = writer.send(self._passed_head(event)) or b""
            self.status = event.status_code
            return data
        if isinstance(event, h11.Data):
            return writer.send(h11.Data(data=self.mask.next(event.data))) or b""
        if isinstance(event, h11.EndOfMessage):
            rest = h11.Data(data=self.mask.end())
            end = writer.send(rest), writer.send(h11.EndOfMessage())
            return b"".join(filter(None, end))
        raise h11.RemoteProtocolError("it ended too early")

    def _passed_head(self, answer: h11.Response) -> h11.Response:
        """Return the head of an answer as the program may see it."""
        self.mask.refresh()
        headers, reason = passed_on(answer), answer.reason
        if self._is_last:
            headers.append((b"Connection", b"close"))
        if self.mask.hides:
            if answer.status_code in _PARTS or _is_coded(answer):
                raise NoAnswerError(_UNSEARCHABLE)
            whole = self.mask.whole
            headers = [(whole(name), whole(data)) for name, data in headers]
            reason = whole(reason)
        return h11.Response(
            status_code=answer.status_code, headers=headers, reason=reason
        )


class PlainResponse:
    """The answer to a plain request of a program whose agent has credentials.

    It is made anew, as inside of HTTPS: a value is found across the borders of chunks,
    and what can be read in two ways breaks off.

    Args:
        attempt: The connection of the request.
        request: It.
        out: Writes the request, and parses the answer.
    """

    def __init__(
        self, attempt: Attempt, request: HTTPRequest, out: h11.Connection
    ) -> None:
        self._exchange = Exchange(attempt, request, is_last=True)
        self._exchange.mask = request.mask()
        self._out = out
        self._is_whole = False
        self._parts = SmallParts()

    @property
    def status(self) -> int | None:
        """The status code, once it has come."""
        return self._exchange.status

    async def pass_on(self, data: bytes | memoryview) -> bytes:
        """Return the bytes for the program that these ones of the server allow.

        Raises:
            OSError: It cannot be searched for credentials, or read in one way.
        """
        if self._is_whole:
            # What follows answers nothing, and would be kept for ever.
            return b""
        made = []
        try:
            self._out.receive_data(bytes(data))
            while not self._is_whole:
                await self._parts.begin()
                event = self._out.next_event()
                if event is h11.NEED_DATA:
                    break
                made.append(self._exchange.written(event))
                self._is_whole = isinstance(event, h11.EndOfMessage)
        except NoAnswerError as error:
            raise OSError(str(error)) from None
        except h11.ProtocolError:
            # Its messages quote what came.
            raise OSError("the server's answer is not HTTP/1.1, or not whole") from None
        return b"".join(made)

    async def end(self) -> bytes:
        """Return what is left when the server has ended. Raises OSError."""
        return await self.pass_on(b"")


def answer_to(
    attempt: Attempt, request: HTTPRequest, out: h11.Connection
) -> PlainAnswer:
    """Return what makes the answer to a plain request; see `PlainResponse`."""
    if request.has_credentials:
        return PlainResponse(attempt, request, out)
    return ResponseHead()


def passed_on(
    event: h11.Response | h11.InformationalResponse,
) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer that are not about its connection."""
    return [
        (name, value)
        for name, value in event.headers.raw_items()
        if name.lower() not in _NOT_PASSED_ON
    ]


def _is_coded(answer: h11.Response) -> bool:
    return any(
        name == b"content-encoding" and value.lower() not in (b"", b"identity")
        for name, value in answer.headers
    )


class NoAnswerError(Exception):
    """The server gives no answer that can be passed on."""
