"""Reads the bodies of requests: they are counted before anything is built of them.

A server answers a `BodyError` in its own form, with the status that it carries.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal, NamedTuple

import anyio
from starlette.requests import ClientDisconnect, Request

from toolcell.core import ToolcellError
from toolcell.core.event_loop import LARGE, give_way
from toolcell.core.text.json_size import count_values
from toolcell.core.text.strict_json import read_json

BODY_SECONDS = 30.0
"""Seconds for a whole body to arrive, and seconds without a byte of one that is used as
it comes. When it is reached the request is answered 408."""

_SMALL = 8_192
"""Bytes of a text that is read within a millisecond, whatever its values are."""

_STATUSES = {
    "not_json": 400,
    "late": 408,
    "too_large": 413,
    "too_many_values": 413,
    "gone": 499,
}
_HINTS = {
    "not_json": "send one JSON object in UTF-8, and each key once",
    "too_large": "send less, or let the operator raise the limit",
    "too_many_values": "send less, or let the operator raise the limit",
}


class BodyError(ToolcellError):
    """The body of a request was not read.

    Args:
        reason: Why, for machines; in `details`.
        message: Why, for people.
    """

    kind = "request.refused"

    def __init__(
        self,
        reason: Literal["not_json", "late", "too_large", "too_many_values", "gone"],
        message: str,
    ) -> None:
        super().__init__(message, hint=_HINTS.get(reason), details={"reason": reason})
        self.status = _STATUSES[reason]
        """The HTTP status of the answer."""


class Bounds(NamedTuple):
    """The size of one JSON text."""

    size: int
    """Bytes. When it is reached the request is answered 413."""

    values: int
    """Texts, numbers, lists and objects. When it is reached the request is answered
    413, unparsed."""

    def check(self, text: bytes) -> bytes:
        """Return a text that may be parsed. Raises BodyError."""
        if len(text) > self.size:
            raise _too_large(self.size)
        if count_values(text, self.values) > self.values:
            raise BodyError(
                "too_many_values", f"there are more than {self.values} values"
            )
        return text

    async def read(self, request: Request) -> bytes:
        """Return the body of a request, which may be parsed. Raises BodyError."""
        return await self.admit(await whole(request, self.size))

    async def admit(self, text: bytes) -> bytes:
        """Return a text that may be parsed; what is not small has steps of its own.

        Raises:
            BodyError: It is too large, or has too many values.
        """
        if len(text) > _SMALL:
            await give_way()
        self.check(text)
        if len(text) > LARGE:
            await give_way()
        return text

    def parse(self, text: bytes) -> Any:
        """Return the value of a text that has one meaning for every parser.

        Raises:
            BodyError: It has too many values, or is no JSON, or gives a key twice.
        """
        return parse(self.check(text))


def parse(text: bytes) -> Any:
    """Return the value of a checked text. Raises BodyError: it is no strict JSON."""
    try:
        return read_json(text)
    except ValueError as error:
        raise BodyError("not_json", f"this is no JSON: {error}") from None


async def whole(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request, which has to arrive in time.

    Raises:
        BodyError: It is larger than `max_bytes`, late, or breaks off.
    """
    with anyio.move_on_after(BODY_SECONDS):
        async with aclosing(pieces(request, max_bytes)) as stream:
            return b"".join([piece async for piece in stream])
    raise _late()


async def pieces(request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield the body of a request as it comes.

    Raises:
        BodyError: It is larger than `max_bytes`, stalls, or breaks off.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    size = 0
    async with aclosing(request.stream()) as stream:
        while True:
            try:
                with anyio.fail_after(BODY_SECONDS):
                    piece = await anext(stream, None)
            except TimeoutError:
                raise _late() from None
            except ClientDisconnect:
                raise BodyError("gone", "the client went away") from None
            if piece is None:
                return
            size += len(piece)
            if size > max_bytes:
                raise _too_large(max_bytes)
            if piece:
                yield piece


def _late() -> BodyError:
    return BodyError("late", "the body did not arrive in time")


def _too_large(max_bytes: int) -> BodyError:
    return BodyError("too_large", f"the body has more than {max_bytes} bytes")
