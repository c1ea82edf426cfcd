"""Serves the console: beside another server of a host, or in its own process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..http.serving import listen, serving
from ..operator.event_bus import Events
from ..operator.people import People
from ..operator.people_file import open_people
from ..runtime.admin_links import admin_link, console_origin
from ..runtime.sources import Sources
from .app import open_app


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
        origin = console_origin(config, *socket.getsockname()[:2])
        people = People(file)
        link = None if people.has_admin() else admin_link(people, origin)
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
