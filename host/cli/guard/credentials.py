"""`toolcell credentials`: what programs use and never have."""

from __future__ import annotations

import typer

from ...terminal.output import print_json, print_table
from ..base.options import DEFAULT_CONFIG, AsJson, ConfigPath

credentials = typer.Typer(
    help="Show the credentials that programs use.", no_args_is_help=True
)


@credentials.callback()
def _group() -> None:
    """A group although it has one command."""


@credentials.command(name="list")
def list_(config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
    """List them with hosts and agents; values are not read."""
    from ...config.host_config import HostConfig

    found = HostConfig.from_file(config).sandbox.credentials
    if as_json:
        print_json([each.model_dump(exclude={"value"}) for each in found])
        return
    rows = [
        (each.name, each.variable, " ".join(each.hosts), " ".join(each.agents))
        for each in found
    ]
    print_table(("name", "variable", "hosts", "agents"), rows)
