"""`toolcell tools login` and `logout`: a person's login for an MCP server."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ...terminal.output import print_json, print_notice
from ...terminal.signals import run_async
from ..base.options import DEFAULT_CONFIG, AsJson, ConfigPath

_Server = Annotated[str, typer.Argument(help="The MCP server.")]
_Agent = Annotated[
    str | None,
    typer.Option("--agent", help="The agent whose own login it is; else of none."),
]


def login(
    server: _Server,
    agent: _Agent = None,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Log in for an MCP server, with a browser of this machine."""
    from toolcell.tools.spi import log_in

    from ...config.host_config import HostConfig
    from ...runtime.mcp_toolsets import person_login

    def show(address: str) -> None:
        print_notice(f"open this in a browser: {address}", as_json=as_json)

    settings = HostConfig.from_file(config)
    client, kept, resource = person_login(settings, server, agent, os.environ)
    run_async(log_in, client, kept, resource, show)
    if as_json:
        print_json({"server": server, "agent_id": agent, "logged_in": True})
    else:
        print(f"{server}: logged in")


def logout(
    server: _Server,
    agent: _Agent = None,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Forget the login for an MCP server, also in hosts that run."""
    from ...config.host_config import HostConfig
    from ...runtime.mcp_toolsets import person_login

    settings = HostConfig.from_file(config)
    _, kept, _ = person_login(settings, server, agent, None)
    had_login = run_async(kept.forget)
    if as_json:
        print_json({"server": server, "agent_id": agent, "had_login": had_login})
    else:
        print(f"{server}: " + ("logged out" if had_login else "nobody was logged in"))
