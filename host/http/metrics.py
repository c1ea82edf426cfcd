"""Answers Prometheus at `/metrics`, on its own listening address."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from toolcell.core import ConfigError

from ..config.host_config import HostConfig
from .serving import listen, serving

PATH = "/metrics"

MAX_CONNECTIONS = 16
"""Connections at once. When it is reached the one that has waited longest for a request
is closed."""


@asynccontextmanager
async def serve_metrics(config: HostConfig) -> AsyncIterator[str | None]:
    """Answer Prometheus while the block runs, if `telemetry.metrics_address` is set.

    Yields:
        The URL; None where no address is set.

    Raises:
        ConfigError: The address cannot be used.
    """
    address = config.telemetry.metrics_address
    if address is None:
        yield None
        return
    names = frozenset({"localhost", *map(_name, config.server.allowed_hosts)})

    async def answer(request: Request) -> Response:
        # A page in a browser that reaches this address by its own name is refused.
        if not _is_known(request.headers.get("host", ""), names):
            return PlainTextResponse("unknown Host", status_code=403)
        return _metrics(request.headers.get("accept", ""))

    app = Starlette(routes=[Route(PATH, answer, methods=["GET"])])
    try:
        listening = listen(address)
    except ConfigError as error:
        message = f"telemetry.metrics_address: {error.message}"
        raise ConfigError(message, hint=error.hint) from error
    with listening as socket:
        async with serving(app, socket, MAX_CONNECTIONS) as url:
            yield f"{url}{PATH}"


def _metrics(accept: str) -> Response:
    from prometheus_client import REGISTRY
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(accept)
    return Response(encode(REGISTRY), headers={"content-type": content_type})


def _is_known(host: str, names: frozenset[str]) -> bool:
    name = _name(host)
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
