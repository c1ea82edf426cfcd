"""Answers MCP clients over streamable HTTP, with the mcp library.

A request passes uvicorn with limited connections, `HostOriginMiddleware`, the token
check, and `BodyMiddleware`; then a session manager of the library reads it and calls
`MCPServer`. `/healthz` and `/readyz` need no token.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import (
    BearerAuthBackend,
    RequireAuthMiddleware,
)
from mcp.server.auth.routes import (
    build_resource_metadata_url,
    create_protected_resource_routes,
)
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from toolcell.core import ConfigError

from ..config.server import AuthConfig
from ..http.agent_shares import AgentShares
from ..http.bodies import Bounds
from ..http.serving import CLOSE_SECONDS
from ..http.tokens import open_tokens
from ..runtime.host import Host
from ..runtime.readiness import Readiness
from .auth import FailClosedVerifier, StoredTokenVerifier, caller_of, load_verifier
from .middleware import BodyMiddleware, HostOriginMiddleware, ValidityMiddleware
from .server import MCPServer

PATH = "/mcp"
_READ_BY_PAGES = ["Mcp-Session-Id", "WWW-Authenticate", "Retry-After"]
"""Headers of answers that pages of other origins may read."""

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_log = logging.getLogger(__name__)


class HTTPServer:
    """The tools of a host for MCP clients over HTTP.

    Besides `/mcp` there is `/healthz`, which answers 200 while the process lives, and
    `/readyz`, which answers 503 with the reason when a call could not be made. Both
    need no token and show nothing else.

    Args:
        host: The host; open.
        listening: The socket where clients connect.
    """

    def __init__(self, host: Host, listening: socket.socket) -> None:
        self._host = host
        self._settings = host.config.server
        self._socket = listening
        self.server = MCPServer(host, lambda ctx: caller_of(ctx, self._settings))
        """The MCP server behind HTTP."""

        self._readiness = Readiness(host)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ASGIApp]:
        """Yield the application; at the end of the block its last clients are answered.

        Raises:
            ConfigError: Authentication is not configured, or would admit everybody.
        """
        with self._verifier() as verifier:
            manager = StreamableHTTPSessionManager(
                self.server.lowlevel,
                session_idle_timeout=self._settings.idle_seconds,
                max_request_body_size=self._settings.max_body_bytes,
                max_sessions=self._settings.max_clients,
            )
            plain = StreamableHTTPSessionManager(
                self.server.plain,
                json_response=True,
                max_request_body_size=self._settings.max_body_bytes,
            )
            bodies = BodyMiddleware(
                manager.asgi_app,
                plain.asgi_app,
                bounds=Bounds(
                    self._settings.max_body_bytes, self._settings.max_body_values
                ),
                shares=AgentShares(
                    self._settings.max_requests,
                    self._settings.max_bytes_per_second,
                    anyio.current_time,
                ),
                is_valid=None if verifier is None else verifier.is_valid,
            )
            async with manager.run(), plain.run():
                yield self._app(bodies, verifier)
                await bodies.settle(CLOSE_SECONDS)
                bodies.close()

    @contextmanager
    def _verifier(self) -> Iterator[FailClosedVerifier | None]:
        auth = self._host.config.auth
        if auth.unauthenticated:
            name = self._socket.getsockname()[0]
            if not ipaddress.ip_address(name).is_loopback:
                raise ConfigError(
                    "auth.unauthenticated is for the loopback address",
                    hint="serve --http 127.0.0.1:PORT, or let clients use tokens",
                )
            if self._settings.agent_id is None:
                raise ConfigError(
                    "auth.unauthenticated needs server.agent_id",
                    hint="set server.agent_id to the agent of all clients",
                )
            yield None
        elif auth.verifier is not None:
            yield FailClosedVerifier(load_verifier(auth.verifier))
        else:
            with open_tokens(self._host.config) as store:
                yield FailClosedVerifier(StoredTokenVerifier(store))

    def _app(
        self, bodies: BodyMiddleware, verifier: FailClosedVerifier | None
    ) -> ASGIApp:
        auth = self._host.config.auth
        endpoint: ASGIApp = bodies
        middleware: list[Middleware] = []
        routes: list[BaseRoute] = [
            Route("/healthz", _healthy),
            Route("/readyz", self._ready),
        ]
        if verifier is not None:
            resource = AnyHttpUrl(auth.resource) if auth.resource else None
            metadata = build_resource_metadata_url(resource) if resource else None
            validity = ValidityMiddleware(endpoint, verifier.is_valid)
            self.server.lowlevel.middleware.append(validity.handle)
            endpoint = RequireAuthMiddleware(validity, list(auth.scopes), metadata)
            backend = BearerAuthBackend(verifier, resource_server_url=resource)
            middleware = [
                Middleware(AuthenticationMiddleware, backend=backend),
                Middleware(AuthContextMiddleware),
            ]
            routes += _metadata_routes(auth, resource)
        routes.append(Route(PATH, endpoint))
        port = self._socket.getsockname()[1]
        names = [f"{name}:{port}" for name in _LOOPBACK]
        hosts = {*names, *self._settings.allowed_hosts}
        own = [f"http://{name}" for name in names]
        origins = frozenset(map(str.lower, [*own, *self._settings.allowed_origins]))
        pages = Middleware(
            CORSMiddleware,
            allow_origins=sorted(origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=_READ_BY_PAGES,
        )
        app = Starlette(routes=routes, middleware=[pages, *middleware])
        return HostOriginMiddleware(app, frozenset(map(str.lower, hosts)), origins)

    async def _ready(self, request: Request) -> JSONResponse:
        if not self.server.calls.ready:
            busy = "stopping" if self.server.calls.draining else "busy"
            return JSONResponse({"status": busy}, status_code=503)
        if missing := await self._readiness.missing():
            body = {"status": "unavailable", "missing": missing}
            return JSONResponse(body, status_code=503)
        return JSONResponse({"status": "ready"})


async def _healthy(request: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})


def _metadata_routes(auth: AuthConfig, resource: AnyHttpUrl | None) -> list[Route]:
    if resource is None or auth.issuer is None:
        return []
    return create_protected_resource_routes(
        resource_url=resource,
        authorization_servers=[AnyHttpUrl(auth.issuer)],
        scopes_supported=list(auth.scopes) or None,
    )
