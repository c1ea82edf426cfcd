"""Serves applications at listening sockets, until a signal ends the process."""

from __future__ import annotations

import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
import uvicorn
from starlette.types import ASGIApp

from .listening import uvicorn_server


@asynccontextmanager
async def serving(
    app: ASGIApp,
    listening: socket.socket,
    max_connections: int,
    *,
    max_message_bytes: int | None = None,
    trusted_proxies: Sequence[str] = (),
) -> AsyncIterator[str]:
    """Serve an application while the block runs.

    Args:
        app: The application.
        listening: The socket.
        max_connections: As `uvicorn_server` has it.
        max_message_bytes: As `uvicorn_server` has it.
        trusted_proxies: As `uvicorn_server` has it.

    Yields:
        The URL of the server.
    """
    server = uvicorn_server(
        app,
        max_connections,
        max_message_bytes=max_message_bytes,
        trusted_proxies=trusted_proxies,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_serve, server, listening)
        try:
            yield url_of(listening)
        finally:
            server.should_exit = True


async def _serve(server: uvicorn.Server, listening: socket.socket) -> None:
    try:
        # `serve` would catch signals, which are for all servers of the process.
        await server._serve([listening])
    finally:
        # Cancelled, uvicorn leaves its socket to the loop, which would take the next
        # socket of the same number for it, and never look at that one.
        for each in vars(server).get("servers", ()):
            each.close()


def url_of(listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    name, port = listening.getsockname()[:2]
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"


async def until_signal(
    drain: Callable[[float], Awaitable[object]],
    seconds: float,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Wait for SIGTERM or SIGINT, and then for the calls that run.

    Args:
        drain: Waits for the calls that run, at most for so many seconds.
        seconds: Seconds that they have. A second signal gives them none.
        on_ready: Called when signals are waited for.
    """
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        on_ready()
        async with anyio.create_task_group() as tasks:

            async def drain_and_end(seconds: float) -> None:
                await drain(seconds)
                tasks.cancel_scope.cancel()

            async for _ in signals:
                tasks.start_soon(drain_and_end, seconds)
                seconds = 0.0
