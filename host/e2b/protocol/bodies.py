"""Reads requests within their limits, and sends answers as long as somebody reads."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple, TypeVar

import anyio
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from toolcell.core.text.json_size import count_values

from .errors import APIError

IDLE_SECONDS = 30.0
"""Seconds without a byte of a body. When it is reached the request is answered 408."""

_MAX_PAGE = 100
M = TypeVar("M", bound=BaseModel)


async def pieces(request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield the body of a request as it comes.

    Raises:
        APIError: It is larger than `max_bytes`, stalls, or breaks off.
    """
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    size = 0
    async with aclosing(request.stream()) as stream:
        while True:
            try:
                with anyio.fail_after(IDLE_SECONDS):
                    piece = await anext(stream, None)
            except TimeoutError:
                raise APIError(408, "the body of the request stalled") from None
            except ClientDisconnect:
                raise APIError(499, "the client went away") from None
            if piece is None:
                return
            size += len(piece)
            if size > max_bytes:
                raise _too_large(max_bytes)
            if piece:
                yield piece


class Bounds(NamedTuple):
    """The size of one JSON message."""

    size: int
    """Bytes. When it is reached the request is answered 413."""

    values: int
    """Texts, numbers, lists and objects. When it is reached the request is answered
    413, unparsed."""

    def check(self, text: bytes) -> bytes:
        """Return a text that may be parsed. Raises APIError 413."""
        if len(text) > self.size:
            raise _too_large(self.size)
        if count_values(text, self.values) > self.values:
            raise APIError(413, f"the message has more than {self.values} values")
        return text


async def body(request: Request, bounds: Bounds) -> bytes:
    """Return the body of a request, a JSON text. Raises APIError as `pieces`."""
    return bounds.check(await whole(request, bounds.size))


async def whole(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request. Raises APIError as `pieces`."""
    async with aclosing(pieces(request, max_bytes)) as stream:
        return b"".join([piece async for piece in stream])


def parsed(model: type[M], data: bytes) -> M:
    """Return the message of a JSON text. Raises APIError if it is none."""
    try:
        return model.model_validate_json(data or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise APIError(400, f"{where}: {first['msg']}") from None


def page(found: list[dict[str, Any]], query: Mapping[str, str]) -> Response:
    """Answer with the page of a list that a query asks for. Raises APIError."""
    texts = (query.get("nextToken", "0"), query.get("limit", str(_MAX_PAGE)))
    if not all(each.isascii() and each.isdecimal() for each in texts):
        raise APIError(400, "nextToken and limit are numbers")
    start, length = (int(each[:9]) for each in texts)
    end = start + min(max(length, 1), _MAX_PAGE)
    headers = {"x-next-token": str(end)} if end < len(found) else None
    return JSONResponse(found[start:end], headers=headers)


def _too_large(max_bytes: int) -> APIError:
    return APIError(413, f"the body has more than {max_bytes} bytes")


class Streamed(Response):
    """An answer whose parts are made while its client reads.

    A client that does not read holds up whatever makes them; one that goes away ends
    it.

    Args:
        parts: The parts.
        media_type: Their type.
        release: Called in any case when the answer is over.
        filler: The part that is sent while there is no other; None sends none.
        filler_seconds: Seconds between two of those.
    """

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        media_type: str,
        *,
        release: Callable[[], Awaitable[None]] | None = None,
        filler: bytes | None = None,
        filler_seconds: float = 90.0,
    ) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self._parts = parts
        self._release = release
        self._filler = filler
        self._filler_seconds = filler_seconds
        self._sending = anyio.Lock()
        self._sent = anyio.current_time()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_until_gone, receive, tasks.cancel_scope)
                start = {"type": "http.response.start", "status": self.status_code}
                await send({**start, "headers": self.raw_headers})
                if self._filler is not None:
                    tasks.start_soon(self._fill, self._filler, send)
                await self._send_parts(send)
                tasks.cancel_scope.cancel()
        finally:
            if self._release is not None:
                with anyio.CancelScope(shield=True):
                    await self._release()

    async def _send_parts(self, send: Send) -> None:
        async with aclosing(self._parts) as parts:
            async for part in parts:
                await self._send_part(part, send)
        async with self._sending:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_part(self, part: bytes, send: Send) -> None:
        async with self._sending:
            body = {"type": "http.response.body", "body": part, "more_body": True}
            await send(body)
            self._sent = anyio.current_time()

    async def _fill(self, filler: bytes, send: Send) -> None:
        while True:
            await anyio.sleep_until(self._sent + self._filler_seconds)
            if anyio.current_time() >= self._sent + self._filler_seconds:
                await self._send_part(filler, send)


async def _until_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
