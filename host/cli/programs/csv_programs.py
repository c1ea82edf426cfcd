"""Programs of a CSV file: the first line names the columns, each other row is one."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from toolcell.core import InvalidInputError
from toolcell.core.text.counted import counted
from toolcell.core.text.strict_json import read_json

_JSON = ("inputs", "files", "limits")
"""Columns whose cells are JSON."""


def is_csv(path: Path) -> bool:
    """Return True for the name of a CSV file, compressed or not."""
    return path.name.lower().removesuffix(".gz").endswith(".csv")


def csv_rows(
    path: Path, file: IO[bytes], max_cell: int
) -> Iterator[tuple[int, Callable[[], dict[str, Any]]]]:
    """Yield the line in which each row begins, and a function that reads its fields.

    Args:
        path: The name of the file, for errors.
        file: The file; it stays open.
        max_cell: Characters of a cell. When it is reached the file is refused.

    Raises:
        InvalidInputError: The file is no CSV, or has no column `code`.
    """
    file.seek(0)
    # A row with bytes that are no UTF-8 is refused, and not the file.
    text = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
    csv.field_size_limit(max_cell)
    rows = csv.reader(text, strict=True)
    try:
        columns = next(rows, [])
        check_columns(f"{path}: line 1 names", columns)
        while True:
            line = rows.line_num + 1
            row = next(rows, None)
            if row is None:
                return
            if row:
                yield line, partial(_fields, columns, row)
    except csv.Error as error:
        raise InvalidInputError(
            f"{path}: line {rows.line_num} is no CSV: {error}",
            hint='put texts with commas, quotes or lines in "...", and write " as ""',
        ) from None
    finally:
        text.detach()


def check_columns(said: str, columns: Sequence[str]) -> None:
    """Refuse a table that has no programs, or two columns of one name.

    Args:
        said: The beginning of the error, such as `a.csv: line 1 names`.
        columns: The names of its columns.

    Raises:
        InvalidInputError: It is such a table.
    """
    twice = [name for name, count in Counter(columns).items() if count > 1]
    if "code" in columns and not twice:
        return
    found = f"{min(twice)!r} twice" if twice else f"no column 'code': {[*columns]}"
    raise InvalidInputError(
        f"{said} {found}", hint="name the columns, the one of the programs `code`"
    )


def _fields(columns: Sequence[str], row: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a row; an empty cell is none.

    Raises:
        InvalidInputError: It has not a cell for each column, or is not UTF-8.
    """
    if len(row) != len(columns):
        raise InvalidInputError(
            f"the row has {counted(len(row), 'cell')}, and line 1 names {len(columns)}",
            hint='put texts with commas or lines in "..."',
        )
    try:
        "".join(row).encode()
    except UnicodeEncodeError:
        raise InvalidInputError(
            "the row is not UTF-8", hint="write the file in UTF-8"
        ) from None
    return {
        name: cell_value(name, cell)
        for name, cell in zip(columns, row, strict=True)
        if cell
    }


def cell_value(name: str, cell: str) -> Any:
    """Return the value of a field that stands as text in a cell of a table."""
    if name not in _JSON:
        return cell
    try:
        return read_json(cell.encode())
    except ValueError:
        return cell  # which is refused as what the field cannot be
