"""`toolcell serve`: the tools of a host for MCP or REST clients, or its sandboxes."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolcell.core import ConfigError
from toolcell.core.text.install_hint import install_hint

from ...terminal.garbage import resume_collection
from ...terminal.output import print_json
from ..base.options import DEFAULT_CONFIG, AsJson, ConfigPath
from .console import beside, require_console

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ...config.host_config import HostConfig
    from ...runtime.host import Host

    _ServeHost = Callable[[Host, str, Callable[[str], None]], Awaitable[None]]

MODULES = {
    "mcp": ("mcp",),
    "sandbox-api": ("starlette", "uvicorn", "python_multipart", "wsproto"),
    "rest": ("starlette", "uvicorn"),
}
"""The modules that each extra brings."""

_ConsoleAddress = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Serve the web console there as well, for people.",
    ),
]


def serve(
    config: ConfigPath = DEFAULT_CONFIG,
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve HTTP there; port 0 is any."),
    ] = None,
    sandbox_api: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve sandboxes to the SDKs of E2B there, in place of MCP.",
        ),
    ] = None,
    rest: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve plain HTTP and JSON there, in place of MCP.",
        ),
    ] = None,
    console: _ConsoleAddress = None,
    agent: Annotated[
        str | None,
        typer.Option(help="The agent on standard input; default server.agent_id."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve MCP clients, or those of REST or of sandboxes.

    Without an address MCP is served on standard input and output.
    """
    others = {"rest": rest, "sandbox-api": sandbox_api}
    served = [name for name, address in others.items() if address is not None]
    _require(served[0] if served else "mcp")
    if console is not None:
        _check_console(beside_http=bool(served or http))
    import anyio

    from ...config.host_config import HostConfig

    settings = HostConfig.from_file(config)
    resume_collection()
    if served and (len(served) > 1 or http is not None or agent is not None):
        raise ConfigError(
            f"--{served[0]} excludes the other servers, and --agent",
            hint="start one server for each; tokens say which agent calls",
        )
    if http is not None and agent is not None:
        raise ConfigError(
            "over HTTP the token says which agent calls",
            hint="leave out --agent; `toolcell tokens create --agent` makes a token",
        )
    server = _server(sandbox_api, rest, http)
    if server is None:
        anyio.run(_serve_stdio, settings, config, agent or settings.server.agent_id)
    else:
        anyio.run(_serve_over_http, *server, settings, config, console, as_json)


def _server(
    sandbox_api: str | None, rest: str | None, http: str | None
) -> tuple[_ServeHost, str] | None:
    """Return what serves a host over HTTP, and its address; None: nothing does."""
    if sandbox_api is not None:
        from ...e2b.app import serve_sandboxes

        return serve_sandboxes, sandbox_api
    if rest is not None:
        from ...rest.server import serve_rest

        return serve_rest, rest
    if http is not None:
        from ...mcp.http_server import serve_http

        return serve_http, http
    return None


def _check_console(*, beside_http: bool) -> None:
    require_console()
    if not beside_http:
        raise ConfigError(
            "--console is beside a server over HTTP",
            hint="`toolcell console` serves it alone",
        )


async def _serve_stdio(settings: HostConfig, path: Path, agent_id: str | None) -> None:
    from ...http.metrics import serve_metrics
    from ...mcp.stdio import serve_stdio
    from ...runtime.policy_reload import open_watched

    if agent_id is None:
        raise ConfigError(
            "which agent calls?", hint="set server.agent_id, or pass --agent"
        )
    known = {policy.agent_id for policy in settings.all_policies()}
    if agent_id not in known:
        raise ConfigError(
            f"there is no policy of an agent {agent_id!r}",
            hint="name an agent of a policy; case counts",
        )
    async with open_watched(settings, path) as host, serve_metrics(settings):
        await serve_stdio(host, agent_id)


async def _serve_over_http(
    serve_host: _ServeHost,
    address: str,
    settings: HostConfig,
    path: Path,
    console: str | None,
    as_json: bool,
) -> None:
    from ...http.metrics import serve_metrics
    from ...runtime.policy_reload import open_watched

    async with open_watched(settings, path) as host, serve_metrics(settings):
        async with beside(host, console, as_json):
            await serve_host(host, address, partial(_print_url, as_json))


def _print_url(as_json: bool, url: str) -> None:
    if as_json:
        print_json({"url": url})
    else:
        print(f"serving {url}", flush=True)


def _require(extra: str) -> None:
    """Raise ConfigError if the packages of an extra are not installed."""
    try:
        for module in MODULES[extra]:
            import_module(module)
    except ImportError:
        raise ConfigError(
            f"serving needs the extra {extra!r}", hint=install_hint(extra)
        ) from None
