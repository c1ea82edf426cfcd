"""`toolcell serve`: the tools and sandboxes of a host, for clients and people."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolcell.core import ConfigError
from toolcell.core.text.install_hint import install_hint

from ...terminal.interpreter import resume_collection
from ...terminal.output import print_json
from ..base.options import DEFAULT_CONFIG, AsJson, ConfigPath
from .console import print_console, require_console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...config.host_config import HostConfig
    from ...config.server import API

MODULES = {
    "mcp": ("mcp", "cryptography"),
    "sandbox-api": ("starlette", "uvicorn", "python_multipart", "wsproto"),
    "rest": ("starlette", "uvicorn"),
}
"""The modules that each extra brings."""

EXTRAS: dict[API, str] = {"mcp": "mcp", "rest": "rest", "e2b": "sandbox-api"}

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
        typer.Option(
            metavar="HOST:PORT",
            help="Serve the APIs of server.apis there; port 0 is any.",
        ),
    ] = None,
    sandbox_api: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve sandboxes to the SDKs of E2B there, also or alone.",
        ),
    ] = None,
    rest: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve plain HTTP and JSON there, also or alone.",
        ),
    ] = None,
    console: _ConsoleAddress = None,
    agent: Annotated[
        str | None,
        typer.Option(help="The agent on standard input; default server.agent_id."),
    ] = None,
    code_mode: Annotated[
        bool,
        typer.Option(help="Show MCP clients three tools that find and run the others."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Serve MCP, REST and sandboxes from one process.

    Each address is one more server of the same host. Without an address MCP is served
    on standard input and output.
    """
    import anyio

    from ...config.host_config import HostConfig

    settings = HostConfig.from_file(config)
    if code_mode:
        shown = settings.server.model_copy(update={"code_mode": True})
        settings = settings.model_copy(update={"server": shown})
    addresses = addresses_of(settings.server.apis, http, rest, sandbox_api)
    for api in [api for _, apis in addresses for api in apis] or ["mcp"]:
        _require(api)
    if console is not None:
        _check_console(beside_http=bool(addresses))
    if not addresses:
        anyio.run(_serve_stdio, settings, config, agent or settings.server.agent_id)
        return
    if agent is not None:
        raise ConfigError(
            "over HTTP the token says which agent calls",
            hint="leave out --agent; `toolcell tokens create --agent` makes a token",
        )
    anyio.run(_serve_over_http, addresses, settings, config, console, as_json)


def addresses_of(
    apis: Sequence[API], http: str | None, rest: str | None, sandbox_api: str | None
) -> list[tuple[str, list[API]]]:
    """Return each address with its APIs.

    Args:
        apis: Those of the address `http`, but for what has its own address.
        http: Their address; None: they are not served.
        rest: The address of REST; None: it has none of its own.
        sandbox_api: The address of E2B's API; None: it has none of its own.

    Raises:
        ConfigError: Nothing is left for the address `http`.
    """
    own: dict[API, str | None] = {"rest": rest, "e2b": sandbox_api}
    found = [(address, [api]) for api, address in own.items() if address is not None]
    if http is None:
        return found
    shared = [api for api in apis if own.get(api) is None]
    if not shared:
        raise ConfigError(
            "each API has its own address, so nothing is left for --http",
            hint="leave out --http, or name another API in server.apis",
        )
    return [(http, shared), *found]


def _check_console(*, beside_http: bool) -> None:
    require_console()
    if not beside_http:
        raise ConfigError(
            "--console is beside a server over HTTP",
            hint="`toolcell console` serves it alone",
        )


async def _serve_stdio(settings: HostConfig, path: Path, agent_id: str | None) -> None:
    from ...http.metrics import serve_metrics
    from ...runtime.policy_reload import open_watched
    from ...serving.servers import serve_stdio

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
        resume_collection()
        await serve_stdio(host, agent_id)


async def _serve_over_http(
    addresses: list[tuple[str, list[API]]],
    settings: HostConfig,
    path: Path,
    console: str | None,
    as_json: bool,
) -> None:
    from ...http.metrics import serve_metrics
    from ...runtime.policy_reload import open_watched
    from ...serving.servers import serve_host

    async with open_watched(settings, path) as host, serve_metrics(settings):
        resume_collection()
        await serve_host(
            host,
            addresses,
            partial(_print_url, as_json),
            console=console,
            on_console=partial(print_console, as_json),
        )


def _print_url(as_json: bool, api: API, url: str) -> None:
    if as_json:
        print_json({"url": url, "api": api})
    else:
        print(f"serving {url}", flush=True)


def _require(api: API) -> None:
    """Raise ConfigError if the packages of the extra of an API are not installed."""
    extra = EXTRAS[api]
    try:
        for module in MODULES[extra]:
            import_module(module)
    except ImportError:
        raise ConfigError(
            f"serving needs the extra {extra!r}", hint=install_hint(extra)
        ) from None
