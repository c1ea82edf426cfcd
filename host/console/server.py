"""Serves the console: beside another server of a host, or in a process of its own."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from toolcell.core import ConfigError

from ..config.host_config import HostConfig
from ..http.listening import listen, uvicorn_server
from ..runtime.sources import Sources
from .accounts.people import FIRST_LINK_SECONDS, People
from .accounts.people_file import open_people
from .app import open_app

_LOOPBACK = ("127.0.0.1", "::1")


@asynccontextmanager
async def serve_console(
    sources: Sources, address: str, *, new_admin: bool = False
) -> AsyncIterator[tuple[str, str | None]]:
    """Serve the console while the block runs.

    Args:
        sources: The state that pages show.
        address: `HOST:PORT`; port 0 chooses a free one.
        new_admin: True makes a one-time link for a new admin also where there is one.

    Yields:
        The address that people open, and the one-time link of the first admin; None
        where there is one already.

    Raises:
        ConfigError: The address cannot be used, or there is no place for people.
    """
    config = sources.config
    with open_people(config) as file, listen(address) as socket:
        origin = _origin(config, *socket.getsockname()[:2])
        people = People(file)
        link = None
        if new_admin or not people.has_admin():
            code = people.make_link(
                role="admin", seconds=FIRST_LINK_SECONDS, local=True
            )
            link = f"{origin}/join/{code}"
        async with open_app(sources, file, origin) as app:
            server = uvicorn_server(
                app,
                config.server.max_connections,
                trusted_proxies=config.console.trusted_proxies,
            )
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server._serve, [socket])
                try:
                    yield origin, link
                finally:
                    server.should_exit = True


def _origin(config: HostConfig, name: str, port: int) -> str:
    """Return the address that people open.

    Raises:
        ConfigError: Others reach it, and nothing says by which name.
    """
    url = config.console.public_url
    if url is not None:
        return url
    if name not in _LOOPBACK:
        raise ConfigError(
            "others would reach the console without TLS",
            hint="serve it on 127.0.0.1 behind a proxy, and set console.public_url",
        )
    return f"http://localhost:{port}"


async def run_console(
    sources: Sources,
    address: str,
    on_ready: Callable[[str, str | None], None],
    *,
    new_admin: bool = False,
) -> None:
    """Serve the console alone until SIGTERM or SIGINT.

    Args:
        sources: The state that pages show.
        address: `HOST:PORT`; port 0 chooses a free one.
        on_ready: Called with the address that people open, and the one-time link.
        new_admin: True makes a one-time link for a new admin.

    Raises:
        ConfigError: As `serve_console`.
    """
    async with serve_console(sources, address, new_admin=new_admin) as (origin, link):
        on_ready(origin, link)
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                break
