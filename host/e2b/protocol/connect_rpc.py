"""The Connect protocol with JSON: messages, and envelopes of streams.

A stream is a row of envelopes: a byte of flags, four bytes of length, a JSON text. The
last one has the flag 2 and holds the error, if there is one. The status of a stream is
200 in any case.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...http.bodies import Bounds, parse, pieces, whole
from ...http.streams import Streamed
from .errors import APIError, as_api_error

_STREAM = "application/connect+json"
_END = 2
_COMPRESSED = 1
_HEAD_BYTES = 5
_MILLISECONDS = re.compile(r"[0-9]{1,10}(\.[0-9]{1,10})?")

Unary = Callable[[bytes], Awaitable[dict[str, Any]]]
"""A method that takes one message and returns one."""

Streaming = Callable[[Request], Awaitable[Response]]
"""A method that answers with a stream."""


def envelope(message: dict[str, Any], flags: int = 0) -> bytes:
    """Return a message of a stream."""
    text = json.dumps(message, separators=(",", ":")).encode()
    return bytes([flags]) + len(text).to_bytes(4, "big") + text


def timeout_of(request: Request) -> float | None:
    """Return the seconds that a client gives a call; None: it sets no limit.

    Raises:
        APIError: It is no number.
    """
    text = request.headers.get("connect-timeout-ms", "")
    if not text:
        return None
    # Old clients send a decimal.
    if not _MILLISECONDS.fullmatch(text):
        raise APIError(400, "connect-timeout-ms is no number of milliseconds")
    return max(float(text) / 1000, 0.001)


def ping_seconds(request: Request) -> float:
    """Return the seconds after which a client wants a sign of life."""
    text = request.headers.get("keepalive-ping-interval", "")
    seconds = float(text) if text.isdecimal() and 0 < len(text) < 6 else 90.0
    return max(seconds, 1.0)


async def answer_unary(request: Request, method: Unary, bounds: Bounds) -> Response:
    """Answer a call with one message on each side."""
    try:
        if request.headers.get("content-encoding", "identity") != "identity":
            raise APIError(501, "compressed messages are not read")
        message = await bounds.read(request)
        return JSONResponse(await method(message))
    except Exception as error:  # noqa: BLE001 - each error is an answer
        return connect_error(as_api_error(error))


def connect_error(error: APIError) -> Response:
    """Return the answer to a failed call that is no stream."""
    if error.status == 502:
        # As a gateway says it, which clients take for the end of the sandbox.
        return error.answer(error.to_json())
    return error.answer(error.to_connect())


async def answer_streaming(request: Request, method: Streaming) -> Response:
    """Answer a call of a streaming method, also one that fails at once."""
    try:
        return await method(request)
    except Exception as error:  # noqa: BLE001 - each error is an answer
        return whole_stream(error=as_api_error(error))


def whole_stream(*messages: dict[str, Any], error: APIError | None = None) -> Response:
    """Return a stream that is known at once."""
    end = {} if error is None else {"error": error.to_connect()}
    parts = [*map(envelope, messages), envelope(end, _END)]
    return Response(b"".join(parts), media_type=_STREAM)


def answer_stream(
    request: Request,
    messages: AsyncGenerator[dict[str, Any], None],
    *,
    keep_alive: dict[str, Any] | None = None,
    keep_alive_seconds: float = 90.0,
    release: Callable[[], Awaitable[None]] | None = None,
) -> Response:
    """Answer a call with a stream of messages.

    Args:
        request: The call.
        messages: The messages; an error that ends them stands in the last envelope,
            and the end of the sandbox by that of the connection.
        keep_alive: The message that is sent while there is no other.
        keep_alive_seconds: Seconds between two of those.
        release: Called when the answer is over.
    """
    return Streamed(
        _envelopes(messages, request.scope["state"]["abort"]),
        _STREAM,
        release=release,
        filler=None if keep_alive is None else envelope(keep_alive),
        filler_seconds=keep_alive_seconds,
    )


async def _envelopes(
    messages: AsyncGenerator[dict[str, Any], None], abort: Callable[[], object]
) -> AsyncGenerator[bytes, None]:
    end: dict[str, Any] = {}
    try:
        async with aclosing(messages):
            async for message in messages:
                yield envelope(message)
    except Exception as error:  # noqa: BLE001 - each error is an answer
        problem = as_api_error(error)
        if problem.status == 502:
            # Clients then look whether the sandbox has ended, and say so.
            abort()
            return
        end = {"error": problem.to_connect()}
    yield envelope(end, _END)


async def read_envelopes(
    request: Request, bounds: Bounds
) -> AsyncIterator[dict[str, Any]]:
    """Yield the messages of a client's stream.

    Raises:
        APIError: They cannot be read, or one is out of bounds.
    """
    held = bytearray()
    async with aclosing(pieces(request, 2**63)) as stream:
        async for piece in stream:
            held += piece
            while (message := await _take(held, bounds)) is not None:
                yield message
    if held:
        raise APIError(400, "the stream ends within a message")


async def read_one(request: Request, bounds: Bounds) -> bytes:
    """Return the only message of a stream. Raises APIError as `read_envelopes`."""
    data = await whole(request, bounds.size)
    if len(data) < _HEAD_BYTES or data[0] & _COMPRESSED:
        raise APIError(400, "the body is no envelope of the Connect protocol")
    size = int.from_bytes(data[1:_HEAD_BYTES], "big")
    if len(data) < _HEAD_BYTES + size:
        raise APIError(400, "the stream ends within a message")
    return await bounds.admit(data[_HEAD_BYTES : _HEAD_BYTES + size])


async def _take(held: bytearray, bounds: Bounds) -> dict[str, Any] | None:
    """Remove and return the first message; None: it is not whole."""
    if len(held) < _HEAD_BYTES:
        return None
    size = int.from_bytes(held[1:_HEAD_BYTES], "big")
    if held[0] & _COMPRESSED or size > bounds.size:
        raise APIError(413, f"a message is compressed, or has over {bounds.size} bytes")
    if len(held) < _HEAD_BYTES + size:
        return None
    text = bytes(held[_HEAD_BYTES : _HEAD_BYTES + size])
    del held[: _HEAD_BYTES + size]
    message = parse(await bounds.admit(text))
    if not isinstance(message, dict):
        raise APIError(400, "a message is no JSON object")
    return message
