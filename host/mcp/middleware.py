"""Middleware that checks HTTP requests before the MCP library reads them.

`HostOriginMiddleware` refuses requests to other host names, as a browser page could
make them. `ValidityMiddleware` ends those of revoked tokens. `BodyMiddleware` reads
bodies and limits them and each agent's share.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import anyio
import mcp_types as types
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..http.agent_shares import AgentShares, TooManyError
from ..http.open_requests import OpenRequests
from .json_rpc import TooLargeError, is_request, read_message
from .responses import JSONResponder, is_plain_call

BODY_SECONDS = 30.0
"""Seconds for a body to arrive. When it is reached the request is answered 408."""

LINGER_SECONDS = 0.5
"""Seconds without a request after which a stopping server closes. Until then it
answers: a client with a result may ask for the list of tools to validate it by."""


PROBES = frozenset({"/healthz", "/readyz"})
"""Paths for those who look after the server. They come by its address in a network,
which nobody has named, and learn no more than that it works."""


class HostOriginMiddleware:
    """Refuses requests with another `Host` or `Origin` than the server's own.

    Without it any page in a browser could use a server on the loopback address. Probes
    may come by any `Host`.

    Args:
        app: The next application.
        hosts: Accepted values of `Host`.
        origins: Accepted values of `Origin`; clients other than browsers send none.
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
        known = known or scope["path"] in PROBES
        if not known or not {each.lower() for each in origins} <= self._origins:
            refusal = PlainTextResponse("unknown Host or Origin", status_code=403)
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)


class ValidityMiddleware:
    """Ends the requests of clients whose token has ended, streams above all.

    Args:
        app: The next application; requests have passed the check of tokens.
        is_valid: Returns False for a client, by its id, whose token has ended.
    """

    def __init__(self, app: ASGIApp, is_valid: Callable[[str], bool]) -> None:
        self._app = app
        self._open = OpenRequests(is_valid)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._open.request(scope) as belongs_to:
            belongs_to(scope["user"].access_token.client_id)
            await self._app(scope, receive, send)


class BodyMiddleware:
    """Reads the body of each request once, whole, and as JSON that has one meaning.

    Args:
        app: The next application.
        plain: An application that answers plain calls with one JSON text.
        max_bytes: Bytes of a body. When it is reached the request is answered 413.
        max_values: Values of a body: texts, numbers, lists, objects. When it is
            reached the request is answered 413, unparsed.
        shares: The shares of agents. When one is used up the agent's requests are
            answered 503 or 429. Answers and notifications of clients need no place.
    """

    def __init__(
        self,
        app: ASGIApp,
        plain: ASGIApp,
        *,
        max_bytes: int,
        max_values: int,
        shares: AgentShares,
    ) -> None:
        self._app = app
        self._plain = JSONResponder(plain)
        self._max_bytes = max_bytes
        self._max_values = max_values
        self._shares = shares
        self._idle = anyio.Event()
        self._answered = -LINGER_SECONDS
        self._reading: set[anyio.CancelScope] = set()
        self._closed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = False

        async def sending(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            if not self._closed:
                await self._take(scope, receive, sending)
        except Exception:
            # The next application was closed while it had the request.
            if not self._closed:
                raise
        if self._closed and not began:
            await _busy("the server stops")(scope, receive, send)

    async def _take(self, scope: Scope, receive: Receive, send: Send) -> None:
        agent_id = _agent_of(scope)
        seconds = self._shares.seconds_to_wait(agent_id)
        if seconds:
            await _busy("too much of this agent at once", seconds)(scope, receive, send)
        elif scope["method"] == "POST":
            await self._post(agent_id, scope, receive, send)
        else:
            self._shares.charge(agent_id, 0)
            await self._app(scope, receive, send)

    async def _post(
        self, agent_id: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        body: bytes | None = None
        with anyio.move_on_after(BODY_SECONDS) as waiting:
            self._reading.add(waiting)
            try:
                body = await self._read(scope, receive)
            finally:
                self._reading.discard(waiting)
        if self._closed:
            return
        self._shares.charge(agent_id, self._max_bytes if body is None else len(body))
        if waiting.cancelled_caught:
            await Response(status_code=408)(scope, receive, send)
        elif body is None:
            await PlainTextResponse("too large", 413)(scope, receive, send)
        else:
            await self._handle(agent_id, body, scope, receive, send)

    async def _handle(
        self, agent_id: str, body: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            message = read_message(body, self._max_values)
            wants_answer = is_request(message)
        except TooLargeError as error:
            await PlainTextResponse(str(error), 413)(scope, receive, send)
            return
        except ValueError:
            await _parse_error(scope, receive, send)
            return
        receive = _replaying(body, receive)
        if not wants_answer:
            await self._app(scope, receive, send)
            return
        app = self._plain if is_plain_call(scope, message) else self._app
        try:
            with self._shares.request(agent_id):
                await app(scope, receive, send)
        except TooManyError as error:
            await _busy(str(error))(scope, receive, send)
        finally:
            self._answered = anyio.current_time()
            if not self._shares:
                self._idle.set()

    async def settle(self, seconds: float) -> None:
        """Wait until all requests are answered and none follows, at most `seconds`."""
        with anyio.move_on_after(seconds):
            while True:
                while self._shares:
                    self._idle = anyio.Event()
                    await self._idle.wait()
                left = self._answered + LINGER_SECONDS - anyio.current_time()
                if left <= 0:
                    return
                await anyio.sleep(left)

    def close(self) -> None:
        """Refuse further requests and unread bodies: the next application has ended."""
        self._closed = True
        for each in list(self._reading):
            each.cancel()

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


def _agent_of(scope: Scope) -> str:
    user = scope.get("user")
    if isinstance(user, AuthenticatedUser):
        return user.access_token.subject or ""
    return ""


def _busy(reason: str, seconds: float = 0.0) -> Response:
    """Return the answer to an agent whose share, or the server's limit, is used up."""
    headers = {"Retry-After": str(max(1, math.ceil(seconds)))}
    if seconds:
        # Nothing else that it sends is read.
        headers["Connection"] = "close"
    return PlainTextResponse(reason, 429 if seconds else 503, headers)


async def _parse_error(scope: Scope, receive: Receive, send: Send) -> None:
    error: dict[str, Any] = {"code": types.PARSE_ERROR, "message": "Parse error"}
    answer = json.dumps({"jsonrpc": "2.0", "id": None, "error": error})
    response = Response(answer, status_code=400, media_type="application/json")
    await response(scope, receive, send)
