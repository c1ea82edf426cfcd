"""One JSON text for one request: what a call without a session gets over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

QUICK_SECONDS = 0.1
"""How long a request runs before somebody looks whether its client is still there."""

SIGN_SECONDS = 15.0
"""How often a client that waits hears that its request still runs."""

_STREAM: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"text/event-stream"),
        (b"cache-control", b"no-cache, no-transform"),
        (b"x-accel-buffering", b"no"),
    ],
}


def is_plain_call(scope: Scope, message: Any) -> bool:
    """Tell whether nothing but its result belongs to a request.

    It is a call outside a session whose client wants no progress.
    """
    headers = Headers(scope=scope)
    if headers.get(MCP_PROTOCOL_VERSION_HEADER) not in MODERN_PROTOCOL_VERSIONS:
        return False
    if "text/event-stream" not in headers.get("accept", ""):
        return False
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    asks_progress = isinstance(meta, dict) and "progressToken" in meta
    return message.get("method") == "tools/call" and not asks_progress


class JSONResponder:
    """Lets an app that answers in JSON take its time.

    A request that takes long ends when its client leaves, and becomes a stream of
    signs of life with the answer at its end: no proxy takes it for dead.

    Args:
        app: What answers, in one piece.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _Answer(send)
        loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as tasks:

            async def end_when_left() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            def look_after() -> None:
                answer.is_slow = True
                tasks.start_soon(end_when_left)
                tasks.start_soon(answer.stay_alive)

            # Most are answered before it is worth a task.
            timer = loop.call_later(QUICK_SECONDS, look_after)
            try:
                await self._app(scope, receive, answer.send)
            finally:
                timer.cancel()
            if answer.is_slow:
                tasks.cancel_scope.cancel()


class _Answer:
    """An answer in JSON, or as the one event of a stream that began before it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = anyio.Lock()
        self._began = False
        self._streams = False
        self.is_slow = False
        """Whether somebody looks after it."""

    async def stay_alive(self) -> None:
        """Send signs of life until the answer begins."""
        while True:
            await anyio.sleep(SIGN_SECONDS)
            async with self._lock:
                if self._began:
                    return
                if not self._streams:
                    self._streams = True
                    await self._send(_STREAM)
                await self._send(_part(b": ping\r\n\r\n", more=True))

    async def send(self, message: Message) -> None:
        """Send a message of the answer."""
        self._began = True
        if not self._streams:
            await self._send(message)
        elif message["type"] == "http.response.body":
            event = b"event: message\r\ndata: %b\r\n\r\n" % message["body"]
            async with self._lock:
                await self._send(_part(event, more=False))


def _part(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}
