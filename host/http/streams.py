"""Answers whose parts are made while their clients read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing

import anyio
import anyio.lowlevel
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

KEEP_ALIVE_SECONDS = 15.0
"""Seconds between comments to a client for which there is no event."""

TAKE_SECONDS = 30.0
"""Seconds that a client may leave events in the server's buffers, which are full. When
it is reached its connection is ended; a new one goes on with `Last-Event-ID`."""


class Streamed(Response):
    """An answer whose parts are made while its client reads.

    A client that does not read holds up whatever makes them; one that goes away ends
    it.

    Args:
        parts: The parts.
        media_type: Their type.
        headers: Further headers.
        release: Called in any case when the answer is over.
        filler: The part that is sent while there is no other; None sends none.
        filler_seconds: Seconds between two of those.
        take_seconds: Seconds that the client may leave a part unread. When it is
            reached its connection is ended. None: for ever.
    """

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        media_type: str,
        *,
        headers: Mapping[str, str] | None = None,
        release: Callable[[], Awaitable[None]] | None = None,
        filler: bytes | None = None,
        filler_seconds: float = 90.0,
        take_seconds: float | None = None,
    ) -> None:
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._parts = parts
        self._release = release
        self._filler = filler
        self._filler_seconds = filler_seconds
        self._take_seconds = take_seconds
        self._sending = anyio.Lock(fast_acquire=True)
        self._sent = anyio.current_time()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            with anyio.move_on_after(self._take_seconds) as taking:
                await send(message)
            if taking.cancelled_caught:
                # To close it would wait for the client to read.
                scope["state"]["abort"]()

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_until_gone, receive, tasks.cancel_scope)
                start = {"type": "http.response.start", "status": self.status_code}
                await send_in_time({**start, "headers": self.raw_headers})
                if self._filler is not None:
                    tasks.start_soon(self._fill, self._filler, send_in_time)
                await self._send_parts(send_in_time)
                tasks.cancel_scope.cancel()
        finally:
            if self._release is not None:
                with anyio.CancelScope(shield=True):
                    await self._release()

    async def _send_parts(self, send: Send) -> None:
        async with aclosing(self._parts) as parts:
            async for part in parts:
                await self._send_part(part, send)
        # If the parts broke the connection off, there is no end to send.
        await anyio.lowlevel.checkpoint()
        async with self._sending:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_part(self, part: bytes, send: Send) -> None:
        async with self._sending:
            body = {"type": "http.response.body", "body": part, "more_body": True}
            await send(body)
            self._sent = anyio.current_time()
        # Between many parts the loop learns that the client has left.
        await anyio.lowlevel.checkpoint()

    async def _fill(self, filler: bytes, send: Send) -> None:
        while True:
            await anyio.sleep_until(self._sent + self._filler_seconds)
            if anyio.current_time() >= self._sent + self._filler_seconds:
                await self._send_part(filler, send)


def event_stream(
    events: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with server-sent events, and comments while there is none.

    A client that never reads costs a connection for a while. Without an end its
    connection would stay, and with it whatever ends by a look at the token or session
    between two events.
    """
    return Streamed(
        events,
        "text/event-stream",
        headers=headers,
        filler=b": ping\n\n",
        filler_seconds=KEEP_ALIVE_SECONDS,
        take_seconds=TAKE_SECONDS,
    )


async def _until_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
