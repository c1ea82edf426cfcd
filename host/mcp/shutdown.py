"""Ends a server at a signal, after the calls that it runs."""

from __future__ import annotations

import signal
from collections.abc import Callable

import anyio

from .server import MCPServer


async def stop_on_signal(server: MCPServer, stop: Callable[[], None]) -> None:
    """Wait for SIGTERM or SIGINT, drain the server, and call `stop`.

    A second signal does not wait for the calls that run.
    """
    seconds = server.drain_seconds
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as tasks:
            async for _ in signals:
                tasks.start_soon(_drain, server, seconds, stop)
                seconds = 0.0


async def _drain(server: MCPServer, seconds: float, stop: Callable[[], None]) -> None:
    await server.calls.drain(seconds)
    stop()
