"""Answers with server-sent events, and drops clients that take none."""

from __future__ import annotations

import anyio
import anyio.lowlevel
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

TAKE_SECONDS = 30.0
"""Seconds that a client may leave events in the server's buffers, which are full. When
it is reached its connection is ended; a new one goes on with `Last-Event-ID`."""


class EventStream(StreamingResponse):
    """A stream of events. A client that never reads costs a connection for a while.

    Without an end its connection would stay, and with it whatever ends by a look at the
    token or session between two events.
    """

    media_type = "text/event-stream"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            with anyio.move_on_after(TAKE_SECONDS) as taking:
                await send(message)
            if taking.cancelled_caught:
                # To close it would wait for the client to read.
                scope["state"]["abort"]()
            # Between many events the loop hears that the client has left.
            await anyio.lowlevel.checkpoint()

        await super().__call__(scope, receive, send_in_time)
