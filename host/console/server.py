"""Serves the console: beside another server of a host, or in its own process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from toolcell.core import ConfigError

from ..config.host_config import HostConfig
from ..http.serving import host_and_port, listen, serving
from ..operator.event_bus import Events
from ..operator.people import FIRST_LINK_SECONDS, People
from ..operator.people_file import open_people
from ..runtime.sources import Sources
from .app import open_app

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@asynccontextmanager
async def serve_console(
    sources: Sources, address: str, events: Events
) -> AsyncIterator[tuple[str, str | None]]:
    """Serve the console while the block runs.

    Args:
        sources: The state that pages show.
        address: `HOST:PORT`; port 0 chooses a free one.
        events: The events of the host.

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
        link = None if people.has_admin() else _link(people, origin)
        async with (
            open_app(sources, file, origin, events) as app,
            serving(
                app,
                socket,
                config.server.max_connections,
                trusted_proxies=config.console.trusted_proxies,
            ),
        ):
            yield origin, link


def link_of_new_admin(config: HostConfig, address: str) -> str:
    """Return a one-time link for a new admin; it is good on this machine.

    Args:
        config: The configuration of the console, which may run.
        address: Where it is or will be served, `HOST:PORT`.

    Raises:
        ConfigError: Nobody reaches the address, or there is no place for people.
    """
    name, port = host_and_port(address)
    if not port and config.console.public_url is None:
        raise ConfigError(
            "a link needs the port of the console",
            hint="give --address as the console that runs has it",
        )
    origin = _origin(config, name, port)
    with open_people(config) as file:
        return _link(People(file), origin)


def _link(people: People, origin: str) -> str:
    code = people.make_link(role="admin", seconds=FIRST_LINK_SECONDS, local=True)
    return f"{origin}/join/{code}"


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
