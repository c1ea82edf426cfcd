"""Serves a host at its addresses until a signal ends it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from toolcell.core import ConfigError

from ..config.server import API
from ..http.serving import listen, serving, until_signal
from ..operator.event_bus import Events, open_events
from ..runtime.host import Host
from ..runtime.sources import Sources, sources_of

if TYPE_CHECKING:
    from ..e2b.app import SandboxAPI


_REST = "/v1/"


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
            app = _starting(scope["path"])
        await app(scope, receive, send)

    def _choice(self, scope: Scope) -> list[API]:
        """Return the open APIs, the one that a request is for first."""
        path = scope["path"]
        api: API = "e2b"
        if self._sandboxes is None or not self._sandboxes.names_sandbox(
            HTTPConnection(scope)
        ):
            if path.startswith(_REST):
                api = "rest"
            elif path.startswith(("/mcp", "/.well-known/", "/healthz", "/readyz")):
                api = "mcp"
        order: tuple[API, ...] = (api, "mcp", "rest", "e2b")
        return [each for each in order if each in self.apps]


def _starting(path: str) -> Response:
    """Return the answer of an API that is not open yet, in its own form."""
    status, reason, message = 503, "starting", "the server starts"
    if path.startswith(_REST):
        from ..rest.errors import RequestRefusedError, answer_of

        return answer_of(RequestRefusedError(status, reason, message, retry_after=1.0))
    from ..mcp.json_rpc import refused

    return refused(status, reason, message, retry_after=1.0)


OnURL = Callable[[API, str], None]
"""Called with an API and its URL when clients can connect."""

OnConsole = Callable[[str, str | None], None]
"""Called with the address of the console, and the one-time link of the first admin."""


async def serve_host(
    host: Host,
    addresses: Sequence[tuple[str, Sequence[API]]],
    on_url: OnURL,
    *,
    console: str | None = None,
    on_console: OnConsole,
) -> None:
    """Serve clients until SIGTERM or SIGINT; calls that run are finished.

    All APIs, and the console, see the same calls, sessions, budgets and events.

    Args:
        host: The host; open.
        addresses: Addresses, `HOST:PORT`, with what is served there; port 0 chooses a
            free one. Each API is at one address.
        on_url: Called when clients can connect.
        console: The address of the console; None: it is not served.
        on_console: Called when people can open the console.

    Raises:
        ConfigError: An address cannot be used, there is no place for tokens or
            people, or authentication is not configured.
    """
    urls: list[tuple[API, str]] = []
    async with AsyncExitStack() as stack:
        fronts = [
            await stack.enter_async_context(_front(host, address, apis))
            for address, apis in addresses
        ]
        opened = open_events(host.event_bus, host.approvals)
        events = await stack.enter_async_context(opened)
        if console is not None:
            from ..console.server import serve_console

            shown = serve_console(sources_of(host), console, events)
            on_console(*await stack.enter_async_context(shown))
        for (front, listening, url), (_, apis) in zip(fronts, addresses, strict=True):
            for api in apis:
                if api != "e2b":
                    opening = _open(api, host, listening, events)
                    front.apps[api] = await stack.enter_async_context(opening)
                urls.append((api, f"{url}/mcp" if api == "mcp" else url))

        def announce() -> None:
            for api, url in urls:
                on_url(api, url)

        seconds = host.config.server.drain_seconds
        await until_signal(host.active_calls.drain, seconds, announce)
        events.close()


async def serve_stdio(host: Host, agent_id: str) -> None:
    """Serve MCP on standard input and output, as one agent, until the input ends."""
    from ..mcp.stdio import serve_client

    await serve_client(host, agent_id)


async def serve_console_alone(
    sources: Sources, address: str, on_console: OnConsole
) -> None:
    """Serve the console of files, which no host has open, until SIGTERM or SIGINT.

    Args:
        sources: The state that pages show.
        address: `HOST:PORT`; port 0 chooses a free one.
        on_console: Called when people can open the console.

    Raises:
        ConfigError: The address cannot be used, or there is no place for people.
    """
    from ..console.server import serve_console

    async with (
        open_events(sources.event_bus, sources.approvals) as events,
        serve_console(sources, address, events) as opened,
    ):
        on_console(*opened)
        await until_signal(_nothing_runs, 0.0)


@asynccontextmanager
async def _front(
    host: Host, address: str, apis: Sequence[API]
) -> AsyncIterator[tuple[Front, socket.socket, str]]:
    """Listen at an address. Sandboxes end after the answers about them."""
    config = host.config
    sandboxes = message_bytes = None
    async with AsyncExitStack() as stack:
        listening = stack.enter_context(listen(address))
        if "e2b" in apis:
            from ..e2b.app import open_app

            if "mcp" in apis and config.auth.unauthenticated:
                raise ConfigError(
                    "auth.unauthenticated lets pages of sandboxes call tools",
                    hint="serve sandboxes at their own address: --sandbox-api",
                )
            sandboxes = await stack.enter_async_context(open_app(host))
            message_bytes = config.sandbox_api.max_body_bytes
        front = Front(sandboxes)
        url = await stack.enter_async_context(
            serving(
                front,
                listening,
                config.server.max_connections,
                max_message_bytes=message_bytes,
            )
        )
        yield front, listening, url


def _open(
    api: API, host: Host, listening: socket.socket, events: Events
) -> AbstractAsyncContextManager[ASGIApp]:
    """Open an API of tools; the packages of the others need not be installed."""
    if api == "rest":
        from ..rest.api import open_api

        return open_api(host, events)
    from ..mcp.http_server import HTTPServer

    return HTTPServer(host, listening).open()


async def _nothing_runs(seconds: float) -> None: ...
