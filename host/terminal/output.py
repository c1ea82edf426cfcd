"""Prints for people, with hidden characters written out, or JSON for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from toolcell.core.text.printable import escaped, escaped_line

if TYPE_CHECKING:
    from rich.table import Table

    from toolcell.core import ErrorInfo
    from toolcell.sandbox import ExecutionResult


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; on anything but a terminal its rows as lines with tabs."""
    shown = [[escaped_line(str(value)) for value in row] for row in rows]
    if not sys.stdout.isatty():
        for row in shown:
            print("\t".join(row))
        return
    from rich.console import Console
    from rich.text import Text

    table = table_of(columns)
    for row in shown:
        table.add_row(*map(Text, row))
    Console().print(table)


def table_of(columns: Sequence[str]) -> Table:
    """Return an empty table for a terminal; where that is narrow nothing is cut."""
    from rich.table import Column, Table

    return Table(*(Column(name, overflow="fold") for name in columns))


def print_json(value: object) -> None:
    """Print a JSON value on one line, all of it printable ASCII."""
    # `json` escapes all but ASCII, and of ASCII all but DEL.
    print(json.dumps(value).replace("\x7f", "\\u007f"), flush=True)


def print_value(result: ExecutionResult) -> None:
    """Print the value of a program's last expression, if any, as Python would."""
    from toolcell.sandbox.spi import OpaqueValue

    value = result.value
    if isinstance(value, OpaqueValue):
        print(escaped(value.repr))
    elif value is not None:
        print(escaped(repr(value)))


def escape_logs() -> None:
    """Write hidden characters out in logs that nobody else handles."""
    import logging

    class Escaped(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return escaped(super().format(record))

    if logging.lastResort is not None:
        logging.lastResort.setFormatter(Escaped())


def print_notice(text: str, *, as_json: bool) -> None:
    """Print a message beside the result, as one line on standard error."""
    line = escaped_line(f"toolcell: {text}")
    print(
        json.dumps({"notice": text}) if as_json else line, file=sys.stderr, flush=True
    )


def print_error(error: ErrorInfo, *, as_json: bool) -> None:
    """Print the reason why there is no result, on standard error."""
    if as_json:
        print(json.dumps({"error": error.model_dump()}), file=sys.stderr)
        return
    text = f"{error.message} ({error.hint})" if error.hint else error.message
    print(f"toolcell: {escaped(text)}", file=sys.stderr)
