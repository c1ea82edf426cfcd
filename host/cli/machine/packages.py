"""`toolcell packages`: the sets of packages that are installed for cells."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from toolcell.core.text.counted import counted
from toolcell.core.text.printable import escaped_line

from ...terminal.output import print_json
from ..base.options import AsJson

if TYPE_CHECKING:
    from toolcell.sandbox.spi import PackageLayer

packages = typer.Typer(
    help="List and prune installed sets of packages.", no_args_is_help=True
)

_Folder = Annotated[
    str | None, typer.Option(help="package_rules.folder; default the user's cache.")
]


@packages.command(name="list")
def list_(folder: _Folder = None, as_json: AsJson = False) -> None:
    """Show what is installed, for which interpreter, and its size."""
    from toolcell.sandbox.spi import list_packages

    found = list_packages(folder)
    if as_json:
        print_json([each.model_dump() for each in found])
        return
    _show(found)
    print(f"{counted(len(found), 'set')}, {_megabytes(found)} MiB")


@packages.command()
def prune(
    days: Annotated[
        float, typer.Option(min=0, help="Days without use; 0 takes all of them.")
    ] = 30.0,
    folder: _Folder = None,
    as_json: AsJson = False,
) -> None:
    """Remove sets that nobody has open or has used lately."""
    from toolcell.sandbox.spi import prune_packages

    removed = prune_packages(days, folder)
    if as_json:
        print_json([each.model_dump() for each in removed])
        return
    _show(removed)
    print(f"{counted(len(removed), 'set')} removed, {_megabytes(removed)} MiB")


def _show(layers: Iterable[PackageLayer]) -> None:
    for layer in layers:
        used = datetime.fromtimestamp(layer.last_used, UTC).strftime("%Y-%m-%d")
        names = escaped_line(" ".join(layer.packages))
        size = _megabytes([layer])
        cell = escaped_line(f"{layer.python} {layer.platform}")
        print(f"{used}  {size:>5} MiB  {cell}  {names}")


def _megabytes(layers: Iterable[PackageLayer]) -> int:
    return round(sum(layer.size_bytes for layer in layers) / 1048576)
