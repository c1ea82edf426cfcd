"""Prints tables for people: nothing in them can act on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from .safe_text import safe


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; on anything but a terminal its rows as lines with tabs."""
    shown = [[safe(str(value)) for value in row] for row in rows]
    if not sys.stdout.isatty():
        for row in shown:
            print("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns)
    for row in shown:
        table.add_row(*map(Text, row))
    Console().print(table)
