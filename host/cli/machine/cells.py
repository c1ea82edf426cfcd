"""`toolcell doctor` checks isolation; `toolcell clean` removes leftovers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from toolcell.core.text.counted import counted
from toolcell.core.text.printable import escaped_line

from ...terminal.exit_codes import EXIT_COULD_NOT_RUN, EXIT_LEFT_SOMETHING
from ...terminal.output import print_json, table_of
from ...terminal.signals import run_async
from ..base.options import AsJson


def doctor(
    as_json: AsJson = False,
    image: Annotated[
        str | None, typer.Option(help="The image to try in a Docker cell.")
    ] = None,
    runtime: Annotated[str | None, typer.Option(help="The runtime to try.")] = None,
) -> None:
    """Try every layer of isolation; say how to get what is missing."""
    from toolcell.sandbox.spi import diagnose

    from ..base.cell_options import config_of
    from ..base.head_start import set_up

    named = {} if image is None else {"image": image}
    config = config_of({"runtime": runtime, **named})
    set_up(config)
    report = run_async(diagnose, config)
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        print_report(report)
    raise typer.Exit(0 if report.backend else EXIT_COULD_NOT_RUN)


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
