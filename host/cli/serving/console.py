"""`toolcell console`: the web console for people, in its own process."""

from __future__ import annotations

import os
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolcell.core import ConfigError
from toolcell.core.text.install_hint import install_hint

from ...terminal.output import print_json
from ...terminal.signals import run_async
from ..base.options import DEFAULT_CONFIG, AsJson, ConfigPath

if TYPE_CHECKING:
    from ...config.host_config import HostConfig

MODULES = (
    *("starlette", "uvicorn", "jinja2", "pygments", "webauthn", "joserfc", "httpx2"),
)
"""The modules that the extra `console` brings."""


def console(
    config: ConfigPath = DEFAULT_CONFIG,
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Serve there; port 0 is any.")
    ] = "127.0.0.1:8932",
    new_admin: Annotated[
        bool,
        typer.Option(help="Print a one-time link for a further admin, and end."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Serve the web console, where people answer calls that wait.

    The first start prints a one-time link, good for ten minutes on this machine.
    """
    require_console()
    import anyio

    from ...config.host_config import HostConfig

    settings = HostConfig.from_file(config)
    if new_admin:
        run_async(_invite, settings, address, as_json)
    else:
        anyio.run(_serve, settings, config, address, as_json)


async def _invite(settings: HostConfig, address: str, as_json: bool) -> None:
    """Print a link for an admin of the console at an address, which may run."""
    from ...runtime.admin_links import link_of_new_admin
    from ..base.audit_event import record_event

    link = link_of_new_admin(settings, address)
    # Nobody has seen it: a link that the log does not know is not used.
    await record_event(settings, "admin_invited")
    if as_json:
        print_json({"link": link})
    else:
        print(f"a further admin signs in once, within 10 minutes: {link}")


async def _serve(settings: HostConfig, path: Path, address: str, as_json: bool) -> None:
    from ...runtime.sources import open_sources
    from ...serving.servers import serve_console_alone

    tell = partial(print_console, as_json)
    async with open_sources(settings, path, os.environ) as sources:
        await serve_console_alone(sources, address, tell)


def print_console(as_json: bool, origin: str, link: str | None) -> None:
    """Print the address of the console, and the one-time link of the first admin."""
    if as_json:
        print_json({"console": origin, "link": link})
        return
    print(f"console {origin}", flush=True)
    if link is not None:
        print(f"the first admin signs in once, within 10 minutes: {link}", flush=True)


def require_console() -> None:
    """Raise ConfigError if the packages of the console are not installed."""
    try:
        for module in MODULES:
            import_module(module)
    except ImportError:
        raise ConfigError(
            "the console needs the extra 'console'", hint=install_hint("console")
        ) from None
