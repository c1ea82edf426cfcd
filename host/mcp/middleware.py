"""Middleware that checks HTTP requests before the MCP library reads them.

`HostOriginMiddleware` refuses requests to other host names, as a browser page could
make them. `ValidityMiddleware` ends those of revoked tokens, also after the library
has read them. `BodyMiddleware` reads bodies and limits them and each agent's share.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import mcp_types as types
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolcell.core import StoreUnavailableError
from toolcell.core.event_loop import give_way, is_large, large_values_of

from ..http.agent_shares import AgentShares, TooManyError
from ..http.bodies import BodyError, Bounds, parse, whole
from ..http.serving import OpenRequests
from .caller import Context
from .json_rpc import is_request, refused
from .responses import JSONResponder, is_plain_call

LINGER_SECONDS = 0.5
"""Seconds without a request after which a stopping server closes. Until then it
answers: a client with a result may ask for the list of tools to validate it by."""

RETRY_SECONDS = 1.0
"""Seconds after which a client may try again where the server had no room."""

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
        if not known or not {origin.lower() for origin in origins} <= self._origins:
            refusal = refused(403, "unknown_host", "unknown Host or Origin")
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

    async def handle(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Handle a message, which in a session the library does apart from its request.

        Raises:
            MCPError: The client's token has ended.
        """
        assert isinstance(ctx.request, Request)
        with self._open.request({}) as belongs_to:
            belongs_to(ctx.request.scope["user"].access_token.client_id)
            return await call_next(ctx)
        raise MCPError(types.INVALID_REQUEST, "the token is not valid any more")


class BodyMiddleware:
    """Reads the body of each request once, whole, and as JSON that has one meaning.

    Args:
        app: The next application.
        plain: An application that answers plain calls with one JSON text.
        bounds: The size of a body.
        shares: The shares of agents. When one is used up the agent's requests are
            answered 503 or 429. Answers and notifications of clients need no place.
        is_valid: Returns False for a client, by its id, whose token has ended. None:
            clients have no tokens.
    """

    def __init__(
        self,
        app: ASGIApp,
        plain: ASGIApp,
        *,
        bounds: Bounds,
        shares: AgentShares,
        is_valid: Callable[[str], bool] | None,
    ) -> None:
        self._app = _telling_full(app)
        self._plain = JSONResponder(plain)
        self._bounds = bounds
        self._shares = shares
        self._is_valid = is_valid
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
            refusal = _busy("stopping", "the server stops")
            await refusal(scope, receive, send)

    async def _take(self, scope: Scope, receive: Receive, send: Send) -> None:
        agent_id = _agent_of(scope)
        seconds = self._shares.seconds_to_wait(agent_id)
        if seconds:
            refusal = _too_much(seconds)
            await refusal(scope, receive, send)
        elif scope["method"] == "POST":
            await self._post(agent_id, scope, receive, send)
        else:
            self._shares.charge(agent_id, 0)
            await self._app(scope, receive, send)

    async def _post(
        self, agent_id: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        size = self._bounds.size
        try:
            with anyio.CancelScope() as reading:
                self._reading.add(reading)
                try:
                    body = await whole(Request(scope, receive), size)
                    size = len(body)
                finally:
                    self._reading.discard(reading)
                    self._shares.charge(agent_id, size)
            if not self._closed:
                await self._handle(agent_id, body, scope, receive, send)
        except BodyError as error:
            await _unread(error)(scope, receive, send)

    async def _handle(
        self, agent_id: str, body: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        with large_values_of(agent_id):
            message = parse(await self._bounds.admit(body))
            if is_large(message):
                # The library parses it again.
                await give_way()
        wants_answer = is_request(message)
        receive = _replaying(body, receive)
        if not wants_answer:
            await self._app(scope, receive, send)
            return
        app = self._plain if is_plain_call(scope, message) else self._app
        try:
            with self._shares.request(agent_id):
                waited = await self._shares.turn(agent_id)
                if waited and not self._has_token(scope):
                    app = refused(401, "no_token", "the token is not valid any more")
                await app(scope, receive, send)
        except TooManyError as error:
            refusal = _busy("busy", str(error), message["id"])
            await refusal(scope, receive, send)
        finally:
            self._answered = anyio.current_time()
            if not self._shares:
                self._idle.set()

    def _has_token(self, scope: Scope) -> bool:
        """Return False for a client whose token has ended since it was looked at."""
        if self._is_valid is None:
            return True
        try:
            return self._is_valid(scope["user"].access_token.client_id)
        except StoreUnavailableError:
            return False

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
        for scope in list(self._reading):
            scope.cancel()


def _telling_full(app: ASGIApp) -> ASGIApp:
    """Return an application whose 503 says when the client may try again.

    The library answers so where it has as many sessions as it may have.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        is_full = False

        async def sending(message: Message) -> None:
            nonlocal is_full
            is_full = is_full or message.get("status") == 503
            if not is_full:
                await send(message)

        await app(scope, receive, sending)
        if is_full:
            refusal = _busy("too_many_sessions", "there are too many sessions")
            await refusal(scope, receive, send)

    return answer


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


def _too_much(seconds: float) -> Response:
    """Return the answer to an agent that has sent its share of bytes."""
    message = "too much of this agent at once"
    refusal = refused(429, "too_many_bytes", message, retry_after=seconds)
    # Nothing else that it sends is read.
    refusal.headers["Connection"] = "close"
    return refusal


def _busy(reason: str, message: str, request_id: str | int | None = None) -> Response:
    """Return the answer where the server has no room, for this agent or for all."""
    return refused(
        503, reason, message, request_id=request_id, retry_after=RETRY_SECONDS
    )


def _unread(error: BodyError) -> Response:
    if error.status == 400:
        return refused(400, "not_json", "Parse error", code=types.PARSE_ERROR)
    reason = str(error.details["reason"])
    return refused(error.status, reason, error.message, code=types.INVALID_REQUEST)
