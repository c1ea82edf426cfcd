"""`toolcell credentials`: what programs use and never have."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import typer

from ...terminal.output import print_json, print_table
from ..base.options import DEFAULT_CONFIG, AsJson, ConfigPath

if TYPE_CHECKING:
    from ...config.host_config import HostConfig

_LATEST = 1_000
"""Records that are looked at for the last use of a credential."""

credentials = typer.Typer(
    help="Show the credentials that programs use.", no_args_is_help=True
)


@credentials.callback()
def _group() -> None:
    """A group although it has one command."""


@credentials.command(name="list")
def list_(config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
    """List them with hosts, agents and their last use; values are not read."""
    from ...config.host_config import HostConfig

    settings = HostConfig.from_file(config)
    found, last = settings.sandbox.credentials, _last_uses(settings)
    if as_json:
        print_json(
            [
                each.model_dump(exclude={"value"}) | {"last_use": last.get(each.name)}
                for each in found
            ]
        )
        return
    rows = [
        (
            *(each.name, each.variable, " ".join(each.hosts), " ".join(each.agents)),
            last.get(each.name, "not recorded"),
        )
        for each in found
    ]
    print_table(("name", "variable", "hosts", "agents", "last use"), rows)


def _last_uses(settings: HostConfig) -> dict[str, str]:
    """Return the time of the last request with each credential, as records say."""
    from ...runtime.assembly import open_records

    folder = settings.state.folder
    if folder is None or not folder.exists():
        return {}
    last: dict[str, str] = {}
    with ExitStack() as stack:
        records = open_records(settings, stack)
        for name in (credential.name for credential in settings.sandbox.credentials):
            requests = records.query(tool_name="http.request", text=name, limit=_LATEST)
            for request in requests:
                outcome = request.result if isinstance(request.result, dict) else {}
                used = outcome.get("used")
                if isinstance(used, list) and name in used:
                    last[name] = request.started_at.isoformat(timespec="seconds")
    return last
