"""Opens sockets, and serves applications at them until a signal ends the process."""

from __future__ import annotations

import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
import uvicorn
from starlette.types import ASGIApp

from toolcell.core import ConfigError

from .connections import ConnectionLimiter

CLOSE_SECONDS = 3
"""Seconds that open requests have when a server stops. When it is reached their
connections are closed."""


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of `HOST:PORT` or `[HOST]:PORT`.

    Raises:
        ConfigError: The address cannot be read.
    """
    name, colon, port = address.rpartition(":")
    name = name.removeprefix("[").removesuffix("]")
    if not colon or not name or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(
            f"{address!r} is no address", hint="write it as 127.0.0.1:8931"
        )
    return name, int(port)


def listen(address: str) -> socket.socket:
    """Return a socket that listens at an address.

    Args:
        address: `HOST:PORT` or `[HOST]:PORT`; port 0 chooses a free one.

    Raises:
        ConfigError: The address cannot be read or used.
    """
    name, port = host_and_port(address)
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    try:
        listening = socket.create_server((name, port), family=family, backlog=512)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {address}: {error.strerror}",
            hint="choose another port, or 0 for any; the host must be "
            "one of this machine",
        ) from None
    # Otherwise an answer of two packets waits 40 ms for the first acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def uvicorn_server(
    app: ASGIApp,
    max_connections: int,
    *,
    max_message_bytes: int | None = None,
    trusted_proxies: Sequence[str] = (),
) -> uvicorn.Server:
    """Return a server for an application, with limited connections.

    Args:
        app: The application.
        max_connections: As `ConnectionLimiter` has it.
        max_message_bytes: Bytes of one message of a WebSocket. When it is reached the
            WebSocket is closed. None: there are no WebSockets.
        trusted_proxies: Addresses and networks whose `X-Forwarded-For` says where a
            request comes from. That of others is ignored.
    """
    connections = ConnectionLimiter(max_connections)
    config = uvicorn.Config(
        app,
        # uvicorn only calls it, so any callable will do.
        http=connections.protocol,  # type: ignore[arg-type]
        lifespan="off",
        ws="none" if max_message_bytes is None else "wsproto",
        ws_max_size=max_message_bytes or 0,
        # A small message must not become a large one.
        ws_per_message_deflate=False,
        log_config=None,
        access_log=False,
        server_header=False,
        # By default uvicorn believes every program on the loopback address.
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=[*trusted_proxies],
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )
    return uvicorn.Server(config)


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
        for listener in vars(server).get("servers", ()):
            listener.close()


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
