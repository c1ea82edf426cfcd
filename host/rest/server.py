"""Serves the REST API with uvicorn, until a signal ends it."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version

import anyio

from ..http.listening import listen, uvicorn_server
from ..http.tokens import open_tokens
from ..operator.approval_events import LOOK_SECONDS, watch_approvals
from ..operator.recent_events import Events
from ..runtime.host import Host
from .api import RestAPI
from .calls import ClientCalls


@asynccontextmanager
async def open_api(
    host: Host, *, look_seconds: float = LOOK_SECONDS
) -> AsyncIterator[RestAPI]:
    """Open the application; when it is left, calls that run are finished.

    Args:
        host: The host; open.
        look_seconds: Seconds between two looks at the requests for approval.

    Raises:
        ConfigError: There is no place for tokens.
    """
    with open_tokens(host.config) as tokens:
        events = Events()
        async with anyio.create_task_group() as tasks:
            calls = ClientCalls(host, tasks)
            watch = partial(watch_approvals, look_seconds=look_seconds)
            tasks.start_soon(watch, host.approvals, events.put)
            try:
                with host.notices.heard(events.put):
                    yield RestAPI(host, tokens, calls, events, version("toolcell"))
                await calls.active.drain(host.config.server.drain_seconds)
            finally:
                events.close()
                tasks.cancel_scope.cancel()


async def serve_rest(host: Host, address: str, on_ready: Callable[[str], None]) -> None:
    """Serve clients until SIGTERM or SIGINT; calls that run are finished.

    Args:
        host: The host; open.
        address: `HOST:PORT`; port 0 chooses a free one.
        on_ready: Called with the URL when clients can connect.

    Raises:
        ConfigError: The address cannot be used, or there is no place for tokens.
    """
    with listen(address) as listening:
        name, port = listening.getsockname()[:2]
        async with anyio.create_task_group() as tasks:
            async with open_api(host) as api:
                server = uvicorn_server(api, host.config.server.max_connections)
                tasks.start_soon(server._serve, [listening])
                on_ready(f"http://{f'[{name}]' if ':' in name else name}:{port}")
                stops = anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT)
                with stops as signals:
                    async for _ in signals:
                        break
            server.should_exit = True
