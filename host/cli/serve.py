"""`toolcell serve`: the tools of a host for MCP clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolcell.core import ConfigError
from toolcell.core.text.install_hint import install_hint

from ..terminal.garbage import resume_collection
from ..terminal.output import print_json
from .options import DEFAULT_CONFIG, AsJson, ConfigPath

if TYPE_CHECKING:
    from ..config.host_config import HostConfig


def serve(
    config: ConfigPath = DEFAULT_CONFIG,
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve HTTP there; port 0 is any."),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(help="The agent on standard input; default server.agent_id."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve MCP on standard input and output, or over HTTP."""
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise ConfigError(
            "serving needs the extra 'mcp'", hint=install_hint("mcp")
        ) from None
    import anyio

    from ..config.host_config import HostConfig

    settings = HostConfig.from_file(config)
    resume_collection()
    if http is None:
        anyio.run(_serve_stdio, settings, config, agent or settings.server.agent_id)
    elif agent is not None:
        raise ConfigError(
            "over HTTP the token says which agent calls",
            hint="leave out --agent; `toolcell tokens create --agent` makes a token",
        )
    else:
        anyio.run(_serve_http, settings, config, http, as_json)


async def _serve_stdio(settings: HostConfig, path: Path, agent_id: str | None) -> None:
    from ..mcp_server.stdio import serve_stdio
    from ..runtime.policy_reload import open_watched

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
    async with open_watched(settings, path) as host:
        await serve_stdio(host, agent_id)


async def _serve_http(
    settings: HostConfig, path: Path, address: str, as_json: bool
) -> None:
    from ..mcp_http.server import serve_http
    from ..runtime.policy_reload import open_watched

    def print_url(url: str) -> None:
        if as_json:
            print_json({"url": url})
        else:
            print(f"serving {url}", flush=True)

    async with open_watched(settings, path) as host:
        await serve_http(host, address, print_url)
