"""Leads requests to servers inside sandboxes, over the channel of each cell."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing

import anyio
import h11
from anyio.abc import ByteStream
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from ...config.sandbox_api import SandboxAPIConfig
from ...http.bodies import pieces
from ...http.streams import Streamed
from ..operations.action import Actions, as_arguments
from ..operations.ports import CONNECT, PortArguments, Server
from ..protocol.access import ACCESS_HEADERS, KEY_HEADER
from ..protocol.errors import APIError
from ..state.sandbox import Sandbox

_OF_ONE_CONNECTION = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
    *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
}
_OF_THE_ORIGIN = {b"set-cookie", b"clear-site-data", b"service-worker-allowed"}
"""Headers by which a page would speak for the address that it shares by path."""

_MAX_INFORMATIONAL = 16
"""Informational answers before the answer. When it is reached it is answered 502."""

_EVENTS_AT_ONCE = 64
_PAUSE_SECONDS = 0.005
"""Chunks of an answer between two pauses, so that a server in a sandbox takes half of
the event loop at most."""

_OURS = {"host", KEY_HEADER, *ACCESS_HEADERS, "e2b-sandbox-id", "e2b-sandbox-port"}
_BODY = ("content-length", "transfer-encoding")


class Ports:
    """Passes HTTP requests on to the servers of sandboxes.

    Args:
        settings: The limits.
        actions: Leads each request through the guard.
    """

    def __init__(self, settings: SandboxAPIConfig, actions: Actions) -> None:
        self._settings = settings
        self._actions = actions

    async def forward(
        self, request: Request, sandbox: Sandbox, port: int, path: str
    ) -> Response:
        """Answer a request as the server at a port does.

        Raises:
            APIError: Nothing listens there, or it speaks no HTTP.
            GuardDeniedError: The guard refuses it.
        """
        wanted = port_arguments(request, sandbox, port, path, request.method)
        async with AsyncExitStack() as opening:
            action = self._actions.do(CONNECT, sandbox.token, wanted)
            reached = await opening.enter_async_context(action)
            server = _Server(reached.stream)
            try:
                await server.send(_head(request, reached))
                if any(name in request.headers for name in _BODY):
                    body = pieces(request, self._settings.max_file_bytes)
                    async with aclosing(body):
                        async for piece in body:
                            await server.send(h11.Data(data=piece))
                await server.send(h11.EndOfMessage())
                head = await server.response()
            except (h11.ProtocolError, anyio.BrokenResourceError):
                raise APIError(502, f"the server at port {port} broke off") from None
            parts = server.parts(request.scope["state"]["abort"])
            answer = Streamed(parts, "", release=opening.pop_all().aclose)
        answer.status_code = head.status_code
        answer.raw_headers = _passed_on(head, by_path=path != raw_path(request))
        return answer


def _passed_on(head: h11.Response, *, by_path: bool) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer that are for the client."""
    dropped = {name.encode() for name in _OF_ONE_CONNECTION}
    for name, value in head.headers:
        if name == b"connection":
            dropped |= {each.strip().lower() for each in value.split(b",")}
    if by_path:
        dropped |= _OF_THE_ORIGIN
    passed = [(name, value) for name, value in head.headers if name not in dropped]
    if by_path:
        # Its pages are of another origin than this server's.
        passed.append((b"content-security-policy", b"sandbox allow-scripts"))
    return passed


class _Server:
    """The client's end of one HTTP exchange; nothing of it is trusted."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)
        self._events = 0

    async def send(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        if data := self._http.send(event):
            await self._stream.send(data)

    async def response(self) -> h11.Response:
        """Return the head of the answer. Raises RemoteProtocolError: there is none."""
        for _ in range(_MAX_INFORMATIONAL):
            event = await self._next()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                break
        raise h11.RemoteProtocolError("it sent no response")

    async def parts(self, abort: Callable[[], object]) -> AsyncGenerator[bytes, None]:
        """Yield the body; an answer that breaks off ends the client's connection."""
        try:
            while isinstance(event := await self._next(), h11.Data):
                yield bytes(event.data)
        except (h11.ProtocolError, anyio.BrokenResourceError):
            abort()

    async def _next(self) -> object:
        self._events += 1
        if self._events % _EVENTS_AT_ONCE == 0:
            # Chunks of one byte cost as much as large ones.
            await anyio.sleep(_PAUSE_SECONDS)
        while (event := self._http.next_event()) is h11.NEED_DATA:
            try:
                data = await self._stream.receive()
            except anyio.EndOfStream:
                data = b""
            self._http.receive_data(data)
        return event


def port_arguments(
    request: HTTPConnection, sandbox: Sandbox, port: int, path: str, method: str
) -> PortArguments:
    """Return the arguments of a request to a server. Raises APIError."""
    return as_arguments(
        PortArguments,
        sandbox_id=sandbox.id,
        port=port,
        method=method,
        path=path,
        query=request.scope["query_string"].decode("latin-1"),
    )


def raw_path(request: HTTPConnection) -> str:
    """Return the path as it came; a server behind a port gets it so."""
    raw: bytes = request.scope["raw_path"]
    return raw.partition(b"?")[0].decode("latin-1")


def headers_for(request: HTTPConnection) -> list[tuple[str, str]]:
    """Return the headers of a request that are for the server in the sandbox."""
    return [
        (name, value)
        for name, value in request.headers.items()
        if name not in _OF_ONE_CONNECTION | _OURS
    ]


def _head(request: Request, reached: Server) -> h11.Request:
    own = headers_for(request)
    if "transfer-encoding" in request.headers:
        own.append(("transfer-encoding", "chunked"))
    headers = [("host", f"localhost:{reached.port}"), *own, ("connection", "close")]
    return h11.Request(method=reached.method, target=reached.target, headers=headers)
