"""`toolcell doctor` checks isolation; `toolcell clean` removes leftovers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolcell.core.text.counted import counted
from toolcell.core.text.printable import escaped_line

from ...terminal.exit_codes import EXIT_COULD_NOT_RUN, EXIT_LEFT_SOMETHING
from ...terminal.output import print_json, table_of
from ...terminal.signals import run_async
from ..base.options import AsJson

if TYPE_CHECKING:
    from toolcell.sandbox import SandboxConfig
    from toolcell.sandbox.spi import DoctorCheck

    from ...config.host_config import HostConfig


def doctor(
    as_json: AsJson = False,
    image: Annotated[
        str | None, typer.Option(help="The image to try in a Docker cell.")
    ] = None,
    runtime: Annotated[str | None, typer.Option(help="The runtime to try.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="The configuration of a host, whose cells and MCP servers are tried."
        ),
    ] = None,
) -> None:
    """Try every layer of isolation; say how to get what is missing.

    With --config try the cells of its [sandbox], and start or reach each MCP server,
    too. Exits with 4 if programs cannot run, or one of these cannot.
    """
    from toolcell.sandbox.spi import diagnose

    from ..base.head_start import set_up

    settings = None if config is None else _read(config)
    cells = _cells(settings, {"image": image, "runtime": runtime})
    set_up(cells)
    report = run_async(diagnose, cells)
    servers = () if settings is None else _try_servers(settings)
    report = report.model_copy(update={"checks": (*report.checks, *servers)})
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        print_report(report)
    all_run = report.backend and all(server.ok for server in servers)
    raise typer.Exit(0 if all_run else EXIT_COULD_NOT_RUN)


def _read(config: Path) -> HostConfig:
    from ...config.host_config import HostConfig

    return HostConfig.from_file(config)


def _cells(
    settings: HostConfig | None, options: dict[str, str | None]
) -> SandboxConfig:
    """Return the configuration of cells; options come before that of a host."""
    from ..base.cell_options import config_of

    named: dict[str, Any] = {}
    if settings is not None:
        host = settings.sandbox
        named = {name: getattr(host, name) for name in host.model_fields_set}
    given = {name: value for name, value in options.items() if value is not None}
    return config_of(named | given)


def _try_servers(settings: HostConfig) -> tuple[DoctorCheck, ...]:
    from ...runtime.server_checks import check_servers

    return run_async(check_servers, settings, os.environ)


def print_report(report: Any) -> None:
    """Print what the doctor found, as a table for people."""
    from rich.console import Console
    from rich.text import Text

    table = table_of(("layer", "holds", "detail", "how to get it"))
    above = ""
    for check in report.checks:
        mark = "[green]yes[/]" if check.ok else "[red]no[/]"
        fix = "as above" if check.fix and check.fix == above else check.fix
        above = check.fix or above
        facts = (check.name, check.detail, fix)
        name, *rest = (Text(escaped_line(fact)) for fact in facts)
        table.add_row(name, mark, *rest)
    console = Console()
    console.print(Text(escaped_line(report.summary)), soft_wrap=True)
    console.print(table)


def clean(
    as_json: AsJson = False,
) -> None:
    """Remove containers, cgroups and folders of hosts that died.

    Exits with 1 if something could not be removed.
    """
    from toolcell.sandbox.spi import clean as sweep

    cleaned = run_async(sweep)
    if as_json:
        print_json(cleaned.model_dump(mode="json"))
    else:
        for name in cleaned.removed:
            print(f"removed {escaped_line(name)}")
        for name in cleaned.left:
            print(f"not removed {escaped_line(name)}")
        print(f"{counted(len(cleaned.removed), 'leftover')} removed", end="")
        print(f", {len(cleaned.left)} not" if cleaned.left else "")
    raise typer.Exit(EXIT_LEFT_SOMETHING if cleaned.left else 0)
