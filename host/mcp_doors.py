"""What an HTTP request passes before the MCP library sees it."""

from __future__ import annotations

import json
from typing import Any

import anyio
import mcp_types as types
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .mcp_answers import PlainAnswers, wants_plain_answer
from .strict_json import is_request, read_json

BODY_SECONDS = 30.0
"""Seconds that a body may take to come. When it is reached the request is answered
408."""


class Addresses:
    """Lets in requests to names of this server, from pages of its own.

    Without it a page in a browser could speak to a server on the loopback address.

    Args:
        app: What is behind.
        hosts: Accepted values of `Host`.
        origins: Accepted values of `Origin`; who is no browser sends none.
    """

    def __init__(
        self, app: ASGIApp, hosts: frozenset[str], origins: frozenset[str]
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        known = len(hosts) == 1 and hosts[0].lower() in self._hosts
        if not known or not {each.lower() for each in origins} <= self._origins:
            refusal = PlainTextResponse("unknown Host or Origin", status_code=403)
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)


class Bodies:
    """Reads the body of each request once, whole, and as JSON that has one meaning.

    Args:
        app: What is behind.
        plain: What answers in JSON alone; calls that need no more go there.
        max_bytes: Of a body. When it is reached the request is answered 413.
        max_requests: Requests at once; answers and notifications of clients come
            besides. When it is reached further requests are answered 503.
    """

    def __init__(
        self, app: ASGIApp, plain: ASGIApp, *, max_bytes: int, max_requests: int
    ) -> None:
        self._app = app
        self._plain = PlainAnswers(plain)
        self._max_bytes = max_bytes
        self._max_requests = max_requests
        self._requests = 0
        self._idle = anyio.Event()
        self.closed = False
        """Whether nothing is behind any more."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.closed:
            await _busy("the server stops")(scope, receive, send)
        elif scope["method"] != "POST":
            await self._app(scope, receive, send)
        else:
            await self._post(scope, receive, send)

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        body: bytes | None = None
        with anyio.move_on_after(BODY_SECONDS) as waiting:
            body = await self._read(scope, receive)
        if waiting.cancelled_caught:
            await Response(status_code=408)(scope, receive, send)
            return
        if body is None:
            await PlainTextResponse("too large", 413)(scope, receive, send)
            return
        try:
            message = read_json(body)
            wants_answer = is_request(message)
        except ValueError:
            await _parse_error(scope, receive, send)
            return
        if wants_answer and self._requests >= self._max_requests:
            refusal = _busy(f"{self._max_requests} requests are in flight")
            await refusal(scope, receive, send)
            return
        plain = wants_answer and wants_plain_answer(scope, message)
        app = self._plain if plain else self._app
        self._requests += wants_answer
        try:
            await app(scope, _replaying(body, receive), send)
        finally:
            self._requests -= wants_answer
            if not self._requests:
                self._idle.set()

    async def settle(self, seconds: float) -> None:
        """Wait until no request is without its whole answer, but no longer."""
        with anyio.move_on_after(seconds):
            while self._requests:
                self._idle = anyio.Event()
                await self._idle.wait()

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body; None if it is too large."""
        declared = Headers(scope=scope).get("content-length", "0")
        if not declared.isdecimal() or int(declared) > self._max_bytes:
            return None
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                return None
            if not message.get("more_body", False):
                return bytes(body)


def _replaying(body: bytes, receive: Receive) -> Receive:
    given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return given.pop() if given else await receive()

    return replay


def _busy(reason: str) -> Response:
    return PlainTextResponse(reason, status_code=503, headers={"Retry-After": "1"})


async def _parse_error(scope: Scope, receive: Receive, send: Send) -> None:
    error: dict[str, Any] = {"code": types.PARSE_ERROR, "message": "Parse error"}
    answer = json.dumps({"jsonrpc": "2.0", "id": None, "error": error})
    response = Response(answer, status_code=400, media_type="application/json")
    await response(scope, receive, send)
