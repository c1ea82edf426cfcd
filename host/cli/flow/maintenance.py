"""The commands of `toolcell flow` that keep a store of threads sound and small."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolcell.core.text.counted import counted
from toolcell.core.text.printable import escaped_line

from ...terminal.exit_codes import EXIT_THREAD_DAMAGED
from ...terminal.output import print_json, print_notice
from ..base.options import DEFAULT_CONFIG, AsJson, ConfigPath
from .store import days_ago, with_threads

if TYPE_CHECKING:
    from toolcell.flow import StoredThreads


def add_maintenance_commands(app: typer.Typer) -> None:
    """Add the commands to the others of `toolcell flow`."""
    for command in (verify, prune):
        app.command()(command)


def verify(
    thread: Annotated[
        str | None, typer.Argument(help="Its id; default all threads.")
    ] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """List threads whose history was altered.

    Exit codes: 0 none, 1 some.
    """

    async def found(threads: StoredThreads) -> dict[str, str]:
        return await threads.verify(thread)

    wrong = with_threads(config, found)
    if as_json:
        print_json([{"thread": name, "wrong": why} for name, why in wrong.items()])
    for name, why in () if as_json else wrong.items():
        print(f"{escaped_line(name)}\t{escaped_line(why)}")
    raise typer.Exit(EXIT_THREAD_DAMAGED if wrong else 0)


def prune(
    days: Annotated[
        float | None,
        typer.Option(min=0, help="Days without a change; default flows.history_days."),
    ] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Delete threads that have ended, and print their ids."""
    before = days_ago(_days(config) if days is None else days)

    async def pruned(threads: StoredThreads) -> list[str]:
        return await threads.prune(before)

    gone = with_threads(config, pruned)
    if as_json:
        print_json(gone)
        return
    for name in gone:
        print(escaped_line(name))
    print_notice(f"{counted(len(gone), 'thread')} deleted", as_json=False)


def _days(path: Path) -> float:
    from toolcell.core import ConfigError

    from ...config.host_config import HostConfig

    days = HostConfig.from_file(path).flows.history_days
    if days is None:
        raise ConfigError(
            "nothing says how long threads stay",
            hint="pass --days, or set flows.history_days",
        )
    return days
