"""Leads each request to the control plane, or to the service of a sandbox.

A sandbox is named by the header `Host` (`{port}-{id}.{domain}`), or by the headers
`E2b-Sandbox-Id` and `E2b-Sandbox-Port`, or by the path `/sandboxes/{id}/ports/{port}/`,
or else by its access token. Whatever names it, the request needs that token, or a URL
signed with it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState

from ..config.host_config import HostConfig
from ..http.agent_shares import AgentShares, TooManyError
from ..http.bodies import Bounds
from ..http.serving import OpenRequests
from ..http.tokens import Token, open_tokens
from ..runtime.host import Host
from .operations.action import Actions
from .protocol.access import (
    Access,
    Operation,
    check_user,
    is_for_control,
    named_sandbox,
    named_user,
)
from .protocol.connect_rpc import answer_streaming, answer_unary, connect_error
from .protocol.errors import RETRY_SECONDS, APIError, as_api_error, gone
from .services.control import Control
from .services.files import Files
from .services.filesystem_service import FilesystemService
from .services.interpreter import Interpreter
from .services.ports import Ports, raw_path
from .services.process_service import ProcessService
from .services.snapshots import SnapshotControl
from .services.sockets import Sockets
from .services.watchers import Watchers
from .state.sandbox import Sandbox
from .state.sandboxes import Sandboxes
from .state.snapshots import Snapshots, open_snapshots

DAEMON_PORT = 49_983
INTERPRETER_PORT = 49_999
_SIGNAL = "/process.Process/SendSignal"

_ID = r"[a-z0-9]{1,64}"
_LABEL = re.compile(rf"([0-9]{{1,5}})-({_ID})")
_PATH = re.compile(rf"/sandboxes/({_ID})/ports/([0-9]{{1,5}})(/.*)?")


SandboxMethod = Callable[[Sandbox, bytes], Awaitable[dict[str, Any]]]
"""A method of a sandbox that takes one message and returns one."""


@dataclass(frozen=True, slots=True)
class Target:
    """The service that a request is for."""

    sandbox_id: str
    port: int
    path: str


class SandboxAPI:
    """The application behind the server.

    Args:
        config: The configuration of the host.
        access: Knows tokens.
        sandboxes: The open sandboxes.
        snapshots: What sandboxes can be made from.
        actions: Leads what clients do through the guard.
    """

    def __init__(
        self,
        config: HostConfig,
        access: Access,
        sandboxes: Sandboxes,
        snapshots: Snapshots,
        actions: Actions,
    ) -> None:
        settings = config.sandbox_api
        self._settings = settings
        self._access = access
        self._open = OpenRequests(access.is_valid)
        self._sandboxes = sandboxes
        server = config.server
        bounds = Bounds(settings.max_body_bytes, server.max_body_values)
        self._bounds = bounds
        self._shares = AgentShares(
            server.max_connections, server.max_bytes_per_second, anyio.current_time
        )
        self._control = Control(settings, bounds, access, sandboxes, snapshots, actions)
        kept = SnapshotControl(bounds, sandboxes, snapshots, actions, self._control)
        self._routes = [
            (Route(path, handler, methods=[method]), handler)
            for method, path, handler in (*self._control.routes, *kept.routes)
        ]
        self._processes = ProcessService(bounds, actions)
        self._files = Files(settings, actions)
        self._code = Interpreter(bounds, actions)
        self._ports = Ports(settings, actions)
        self._sockets = Sockets(settings, actions)
        watchers = Watchers(bounds, actions)
        services = {
            "process.Process": self._processes.unary,
            "filesystem.Filesystem": {
                **FilesystemService(actions).unary,
                **watchers.unary,
            },
        }
        self._unary: dict[str, SandboxMethod] = {
            f"/{service}/{name}": method
            for service, methods in services.items()
            for name, method in methods.items()
        }
        self._streams = {
            "/filesystem.Filesystem/WatchDir": watchers.watch,
            "/process.Process/Start": self._processes.start,
            "/process.Process/Connect": self._processes.connect,
            "/process.Process/StreamInput": self._processes.stream_input,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._open.request(scope) as opened, ExitStack() as place:

            async def belongs_to(token: Token) -> None:
                opened(token)
                ends = self._ends(HTTPConnection(scope))
                try:
                    place.enter_context(self._shares.request(token.agent_id, ends=ends))
                except TooManyError as error:
                    raise APIError(
                        429, str(error), reason="busy", retry_after=RETRY_SECONDS
                    ) from None
                waited = await self._shares.turn(token.agent_id, ends=ends)
                if waited and not self._access.is_valid(token):
                    raise APIError(401, "the token is not valid any more")

            # Whoever finds the token of the request tells.
            scope["belongs_to"] = belongs_to
            if scope["type"] == "websocket":
                await self._answer_socket(WebSocket(scope, receive, send))
            else:
                await self._answer_http(scope, receive, send)

    def names_sandbox(self, connection: HTTPConnection) -> bool:
        """Return True if a request is for a sandbox, or names one badly."""
        try:
            return self._target(connection) is not None
        except APIError:
            return True

    async def _answer_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except Exception as error:  # noqa: BLE001 - each error is an answer
            problem = as_api_error(error)
            response = problem.answer(problem.to_json())
        await response(scope, receive, send)

    async def _answer_socket(self, socket: WebSocket) -> None:
        try:
            target = self._target(socket)
            if target is None or target.port in (DAEMON_PORT, INTERPRETER_PORT):
                raise APIError(501, "WebSockets lead to ports of sandboxes alone")
            self._check_port(socket, target)
            sandbox = await self._owned(socket, target)
            await self._sockets.forward(socket, sandbox, target.port, target.path)
        except Exception as error:  # noqa: BLE001 - each error is an answer
            problem = as_api_error(error)
            if socket.application_state is WebSocketState.CONNECTING:
                refusal = problem.answer(problem.to_json())
                await socket.send_denial_response(refusal)
            elif socket.application_state is WebSocketState.CONNECTED:
                await socket.close(1011, problem.message)

    async def _answer(self, request: Request) -> Response:
        if request.url.path == "/healthz":
            return PlainTextResponse("ok")
        target = self._target(request)
        if target is None and _is_signed_file(request):
            target = self._signed_target(request)
        if target is None:
            return await self._answer_control(request)
        if target.port == DAEMON_PORT:
            return await self._answer_daemon(request, target)
        if target.port == INTERPRETER_PORT:
            self._access.check(request.headers, target.sandbox_id)
            sandbox = await self._owned(request, target)
            return await self._answer_code(request, sandbox, target.path)
        self._check_port(request, target)
        sandbox = await self._owned(request, target)
        return await self._ports.forward(request, sandbox, target.port, target.path)

    def _ends(self, request: HTTPConnection) -> bool:
        """Return True for a request that ends what its agent has begun."""
        deletes = request.scope.get("method") == "DELETE"
        if not deletes and not raw_path(request).endswith(_SIGNAL):
            return False
        target = self._target(request)
        if target is None or target.port == INTERPRETER_PORT:
            return deletes
        return target.port == DAEMON_PORT and target.path == _SIGNAL

    def _target(self, request: HTTPConnection) -> Target | None:
        """Return the sandbox that a request names.

        Raises:
            APIError: It names two, or none that could be.
        """
        headers, path = request.headers, raw_path(request)
        found = [self._by_host(headers, path), _by_path(path)]
        # Old clients name the sandbox to the control plane, too.
        if not (has_key := is_for_control(headers)):
            found.append(_by_headers(headers, path))
        named = [each for each in found if each is not None]
        if len({(each.sandbox_id, each.port) for each in named}) > 1:
            raise APIError(400, "the request names two sandboxes or ports")
        if named:
            return named[-1]
        return None if has_key else _by_access_token(headers, path)

    def _by_host(self, headers: Mapping[str, str], path: str) -> Target | None:
        domain = self._settings.domain
        name = headers.get("host", "").lower().partition(":")[0]
        label, dot, rest = name.partition(".")
        found = _LABEL.fullmatch(label)
        if domain is None or not dot or rest != domain or found is None:
            return None
        return Target(found[2], int(found[1]), path)

    def _signed_target(self, request: Request) -> Target | None:
        """Return the sandbox whose key signed a URL that names none."""
        operation = _operation(request)
        if operation is None:
            return None
        query = request.query_params
        for sandbox_id in self._sandboxes.ids():
            if self._access.is_signed(query, operation, sandbox_id):
                return Target(sandbox_id, DAEMON_PORT, "/files")
        raise APIError(401, "the signature is not valid")

    async def _answer_control(self, request: Request) -> Response:
        token = self._access.token(request.headers)
        await request.scope["belongs_to"](token)
        for route, handler in self._routes:
            match, child = route.matches(request.scope)
            if match is Match.FULL:
                request.scope.update(child)
                return await handler(request, token)
        raise _not_supported(request)

    async def _answer_daemon(self, request: Request, target: Target) -> Response:
        try:
            self._authorize(request, target)
            if target.path == "/health":
                return self._answer_health(target)
            check_user(named_user(request.headers), self._settings.user)
            sandbox = await self._owned(request, target)
        except APIError as error:
            if target.path == "/files":
                raise
            return connect_error(error)
        path, method = target.path, request.method
        if path == "/files" and method == "GET":
            return await self._files.download(request, sandbox)
        if path == "/files" and method == "POST":
            return await self._files.upload(request, sandbox)
        if path in self._unary and method == "POST":
            call = partial(self._unary[path], sandbox)
            return await answer_unary(request, call, self._bounds)
        if path in self._streams and method == "POST":
            stream = partial(self._streams[path], sandbox=sandbox)
            return await answer_streaming(request, stream)
        return connect_error(_not_supported(request))

    def _check_port(self, request: HTTPConnection, target: Target) -> None:
        """Check the access token of a request to a port.

        Raises:
            APIError: 403: it has none, or a wrong one; 502: the sandbox has ended.
        """
        try:
            self._access.check(request.headers, target.sandbox_id)
        except APIError as error:
            self._find_sandbox(target)
            raise APIError(403, error.message) from None

    def _authorize(self, request: Request, target: Target) -> None:
        """Check a request's access token, or else its signature. Raises APIError."""
        signed = "signature" in request.query_params and target.path == "/files"
        operation = _operation(request)
        if signed and operation is not None:
            self._access.check_signature(
                request.query_params, operation, target.sandbox_id
            )
        else:
            self._access.check(request.headers, target.sandbox_id)

    async def _answer_code(
        self, request: Request, sandbox: Sandbox, path: str
    ) -> Response:
        parts = path.strip("/").split("/")
        match request.method, parts:
            case "GET", ["health"]:
                return PlainTextResponse("ok")
            case "POST", ["execute"]:
                return await self._code.execute(request, sandbox)
            case "POST", ["contexts"]:
                return await self._code.create(request, sandbox)
            case "GET", ["contexts"]:
                return await self._code.list(request, sandbox)
            case "DELETE", ["contexts", context_id]:
                return await self._code.remove(sandbox, context_id)
            case "POST", ["contexts", context_id, "restart"]:
                return await self._code.restart(sandbox, context_id)
        raise _not_supported(request)

    def _answer_health(self, target: Target) -> Response:
        """Answer whether a sandbox runs, which wakes none up. Raises APIError."""
        if self._find_sandbox(target).state != "running":
            raise gone(target.sandbox_id[:64])
        return Response(status_code=204)

    async def _owned(self, request: HTTPConnection, target: Target) -> Sandbox:
        """Return the sandbox, awake, if its token is still valid. Raises APIError."""
        await request.scope["belongs_to"](self._find_sandbox(target).token)
        # It may have ended while its agent's turn was waited for.
        sandbox = self._find_sandbox(target)
        if sandbox.is_asleep:
            await self._control.wake(sandbox)
        return sandbox

    def _find_sandbox(self, target: Target) -> Sandbox:
        sandbox = self._sandboxes.find(target.sandbox_id)
        if not self._access.is_valid(sandbox.token):
            raise APIError(401, "the token of the sandbox is not valid any more")
        return sandbox


def _by_headers(headers: Mapping[str, str], path: str) -> Target | None:
    name = headers.get("e2b-sandbox-id")
    port = headers.get("e2b-sandbox-port", str(DAEMON_PORT))
    if name is None:
        return None
    if not _LABEL.fullmatch(f"{port}-{name}"):
        raise APIError(400, "e2b-sandbox-id or e2b-sandbox-port cannot be read")
    return Target(name, int(port), path)


def _by_path(path: str) -> Target | None:
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    return Target(found[1], int(found[2]), found[3] or "/")


def _by_access_token(headers: Mapping[str, str], path: str) -> Target | None:
    name = named_sandbox(headers)
    if name is None or not re.fullmatch(_ID, name):
        return None
    return Target(name, DAEMON_PORT, path)


def _is_signed_file(request: Request) -> bool:
    return "signature" in request.query_params and raw_path(request) == "/files"


def _operation(request: Request) -> Operation | None:
    operations: dict[str, Operation] = {"GET": "read", "POST": "write"}
    return operations.get(request.method)


def _not_supported(request: Request) -> APIError:
    return APIError(
        501, f"{request.method} {request.url.path[:200]} is not supported by toolcell"
    )


@asynccontextmanager
async def open_app(host: Host) -> AsyncIterator[SandboxAPI]:
    """Open the application; its sandboxes end when it is left.

    Raises:
        ConfigError: There is no place for tokens.
        SandboxUnavailableError: No cell is available.
    """
    config = host.config
    with open_tokens(config) as tokens:
        snapshots = open_snapshots(config)
        # Cells of a cluster are the nodes', whoever asks for them; those of this
        # machine are made differently for sandboxes.
        shared = host.sandbox if config.cluster is not None else None
        event_bus = host.event_bus
        async with Sandboxes(config, host.environ, event_bus, shared) as sandboxes:
            settings = config.sandbox_api
            actions = Actions(host.executor, settings, sandboxes, snapshots)
            yield SandboxAPI(config, Access(tokens), sandboxes, snapshots, actions)
