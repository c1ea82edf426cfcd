"""Parquet files of `toolcell map`: a program in each row, and results as a table."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from pydantic_core import to_jsonable_python

from toolcell.core import ConfigError, InvalidInputError
from toolcell.core.text.install_hint import install_hint

from .csv_programs import cell_value, check_columns

MAGIC = b"PAR1"
"""The first bytes of each such file."""

_ROWS = 32
"""Rows that are read at once; each may have a picture."""

_GROUP_CHARACTERS = 16_777_216
"""Characters that make a row group, and that are held meanwhile."""


def is_parquet(path: Path) -> bool:
    """Return True for the name of a Parquet file."""
    return path.suffix.lower() == ".parquet"


def parquet_rows(
    path: Path, file: IO[bytes], fields: Collection[str]
) -> Iterator[tuple[int, Callable[[], dict[str, Any]]]]:
    """Yield the number of each row, from 1, and a function that reads its columns.

    Args:
        path: The name of the file, for errors.
        file: The file; it stays open.
        fields: The fields of a program. Values of other columns that are no JSON are
            read as texts, as they are written there.

    Raises:
        ConfigError: pyarrow is not installed.
        InvalidInputError: The file is not whole, has no column `code`, or two columns
            of one name.
    """
    number = itertools.count(1)
    with _reading(path, file) as table:
        for rows in table.iter_batches(_ROWS, use_threads=False):
            for at in range(rows.num_rows):
                yield next(number), partial(_columns, rows, at, fields)


def row_count(path: Path, file: IO[bytes]) -> int:
    """Return the number of rows, which is read and checked as by `parquet_rows`."""
    with _reading(path, file) as table:
        return int(table.metadata.num_rows)


def _columns(rows: Any, at: int, fields: Collection[str]) -> dict[str, Any]:
    """Return the columns of a row; what is null in it, or in a field, is left out.

    A value of another column that has no counterpart in Python becomes the reason.

    Raises:
        InvalidInputError: A value of a field has no counterpart in Python.
    """
    found = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        read = partial(_field, name) if name in fields else _own_value
        try:
            value = read(column[at])
        except (ValueError, OverflowError, NotImplementedError) as error:
            if name not in fields:
                found[name] = f"<cannot be read: {error}>"
                continue
            raise InvalidInputError(
                f"{name} cannot be read: {error}", hint="write it as text, or as JSON"
            ) from None
        if value is not None:
            found[name] = value
    return found


def _field(name: str, cell: Any) -> Any:
    value = cell.as_py()
    if isinstance(value, str):
        return cell_value(name, value)
    if isinstance(value, dict):
        return {key: each for key, each in value.items() if each is not None}
    return value


def _own_value(cell: Any) -> Any:
    """Return a value as JSON has it: dates as texts, bytes in base64, NaN as null.

    Raises:
        OverflowError: It is an object with a number that Python has not.
        ValueError: It is an object with a value that Python has not.
    """
    try:
        found = cell.as_py()
    except (ValueError, OverflowError):
        if cell.type.num_fields:
            raise
        found = cell.cast("string").as_py()
    return to_jsonable_python(found, bytes_mode="base64", inf_nan_mode="null")


def write_parquet(
    columns: Collection[str], rows: Iterable[Sequence[Any]], file: IO[bytes]
) -> None:
    """Write a table, in groups of rows.

    Args:
        columns: Their names. `line` has numbers, all others have texts.
        rows: The values of each row.
        file: The file; it stays open.

    Raises:
        OSError: It cannot be written.
        ValueError: A value cannot stand in a table.
    """
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    text, whole = arrow.large_string(), arrow.int64()
    schema = arrow.schema(
        [(name, whole if name == "line" else text) for name in columns]
    )
    try:
        with parquet.ParquetWriter(file, schema) as writer:
            for group in _groups(rows):
                found = [dict(zip(columns, row, strict=True)) for row in group]
                writer.write_batch(arrow.RecordBatch.from_pylist(found, schema))
    except arrow.ArrowException as error:
        raise ValueError(str(error)) from None


def _groups(rows: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    group, size = [], 0
    for row in rows:
        group.append(row)
        size += sum(len(each) for each in row if isinstance(each, str))
        if size >= _GROUP_CHARACTERS:
            yield group
            group, size = [], 0
    if group:
        yield group


@contextmanager
def _reading(path: Path, file: IO[bytes]) -> Iterator[Any]:
    """Give a file of programs, as pyarrow opens it, to a block that reads it."""
    parquet = pyarrow_for(path)
    damaged = import_module("pyarrow").ArrowException
    try:
        # Otherwise all of the file is read, and kept, at the first row.
        table = parquet.ParquetFile(file, buffer_size=65_536, pre_buffer=False)
        check_columns(f"{path} has", table.schema_arrow.names)
        yield table
    except (damaged, OSError) as error:
        raise InvalidInputError(
            f"{path} is no whole Parquet file: {error}", hint="name a whole file"
        ) from None


def pyarrow_for(path: Path) -> Any:
    """Return pyarrow's module of Parquet. Raises ConfigError if there is none."""
    try:
        return import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigError(
            f"{path} is Parquet, which needs the extra 'parquet'",
            hint=install_hint("parquet"),
        ) from None
