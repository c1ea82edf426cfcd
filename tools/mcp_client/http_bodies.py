"""Answers of an HTTP server, bounded before the MCP library reads them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from toolcell.core.text.json_size import count_values

from ..external.login_auth import answer_without_token
from .kept_results import KeptResults
from .message_limits import MESSAGE_VALUES, Pace

if TYPE_CHECKING:
    import httpx2

# The empty line that ends an event (HTML, "Server-sent events", 9.2.5).
_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")


def bounded_transport(max_bytes: int, kept: KeptResults) -> httpx2.AsyncBaseTransport:
    """Return a transport that passes on whole messages of a bounded size alone.

    A body that is one message, and each event of a stream, has at most `max_bytes`
    bytes and `MESSAGE_VALUES` values. When one of them is exceeded the answer ends
    with an error and nothing of that message is passed on. A stream of events itself
    lasts as long as the connection.

    Args:
        max_bytes: Bytes of one message.
        kept: Takes large results out of the messages.
    """
    import httpx2

    pace = Pace()

    class Transport(httpx2.AsyncHTTPTransport):
        async def handle_async_request(
            self, request: httpx2.Request
        ) -> httpx2.Response:
            if refused := answer_without_token(request):
                return refused
            response = await super().handle_async_request(request)
            kind = response.headers.get("content-type", "").lower()
            # Otherwise httpx would unpack it.
            response.headers.pop("content-encoding", None)
            # An error is one message, which others wait for.
            is_stream = response.is_success and kind.startswith("text/event-stream")
            if is_stream:
                # Events are UTF-8 (HTML, 9.2.5). httpx would read them by the charset
                # that a server names, in which brackets may be other bytes.
                response.headers["content-type"] = "text/event-stream"
            read = read_events if is_stream else read_message
            pieces = read(response.stream, max_bytes, pace)
            keep = kept.keep_of_event if is_stream else kept.keep
            response.stream = _body(response.stream, pieces, keep)
            return response

    return Transport(trust_env=False)


def _body(
    inner: Any, pieces: AsyncIterator[bytes], keep: Callable[[bytes], bytes]
) -> httpx2.AsyncByteStream:
    import httpx2

    class Body(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for piece in pieces:
                    yield keep(piece)
            except ValueError as error:
                raise httpx2.StreamError(str(error)) from None

        async def aclose(self) -> None:
            await inner.aclose()

    return Body()


async def read_message(chunks: Any, max_bytes: int, pace: Pace) -> AsyncIterator[bytes]:
    """Yield a body whole. Raises ValueError for one that is too large."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        _check_size(body, max_bytes)
    await pace.admit(_checked_values(bytes(body)))
    yield bytes(body)


async def read_events(chunks: Any, max_bytes: int, pace: Pace) -> AsyncIterator[bytes]:
    """Yield events, each whole; comments are left out.

    Raises:
        ValueError: One is too large.
    """
    buffer = bytearray()
    async for chunk in chunks:
        # An end may lie across two chunks.
        seen = max(0, len(buffer) - 3)
        buffer += chunk
        comments = 0
        while (end := _EVENT_END.search(buffer, seen)) is not None:
            event = bytes(buffer[: end.end()])
            del buffer[: end.end()]
            seen = 0
            _check_size(event, max_bytes)
            if event.startswith(b":") and b"data" not in event:
                comments += 1
                continue
            await pace.admit(_checked_values(event))
            yield event
        _check_size(buffer, max_bytes)
        await pace.admit(comments)
    yield bytes(buffer)


def _check_size(data: bytes | bytearray, max_bytes: int) -> None:
    if len(data) > max_bytes:
        raise ValueError(f"more than {max_bytes:,} bytes")


def _checked_values(message: bytes) -> int:
    values = count_values(message, MESSAGE_VALUES)
    if values > MESSAGE_VALUES:
        raise ValueError(f"a message of more than {MESSAGE_VALUES} values")
    return values
