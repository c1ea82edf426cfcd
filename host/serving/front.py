"""Leads each request at one address to the API that it is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ..config.server import API

if TYPE_CHECKING:
    from ..e2b.app import SandboxAPI


class Front:
    """The application of one address.

    A request that names a sandbox, by whatever part of it, is for that sandbox, also
    where its path is that of another API.

    Args:
        sandboxes: E2B's API; None: it is not served here.
    """

    def __init__(self, sandboxes: SandboxAPI | None) -> None:
        self._sandboxes = sandboxes
        self.apps: dict[API, ASGIApp] = {}
        """The APIs, once they are open. Until then requests are answered 503."""

        if sandboxes is not None:
            self.apps["e2b"] = sandboxes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = next((self.apps[api] for api in self._choice(scope)), None)
        if app is None:
            app = PlainTextResponse("the server starts", 503, {"Retry-After": "1"})
        await app(scope, receive, send)

    def _choice(self, scope: Scope) -> list[API]:
        """Return the open APIs, the one that a request is for first."""
        path = scope["path"]
        api: API = "e2b"
        if self._sandboxes is None or not self._sandboxes.names_sandbox(
            HTTPConnection(scope)
        ):
            if path.startswith("/v1/"):
                api = "rest"
            elif path.startswith(("/mcp", "/.well-known/", "/healthz", "/readyz")):
                api = "mcp"
        order: tuple[API, ...] = (api, "mcp", "rest", "e2b")
        return [each for each in order if each in self.apps]
