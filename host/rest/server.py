"""Opens the REST API of a host."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

import anyio

from ..http.tokens import open_tokens
from ..operator.event_bus import Events
from ..runtime.host import Host
from .api import RestAPI
from .calls import ClientCalls


@asynccontextmanager
async def open_api(host: Host, events: Events) -> AsyncIterator[RestAPI]:
    """Open the application; when it is left, calls that run are finished.

    Args:
        host: The host; open.
        events: The events of the host.

    Raises:
        ConfigError: There is no place for tokens.
    """
    with open_tokens(host.config) as tokens:
        async with anyio.create_task_group() as tasks:
            calls = ClientCalls(host, tasks)
            try:
                yield RestAPI(host, tokens, calls, events, version("toolcell"))
                await host.active_calls.drain(host.config.server.drain_seconds)
            finally:
                tasks.cancel_scope.cancel()
