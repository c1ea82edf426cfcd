"""Parquet files of `toolcell map`: a program in each row, and results as a table."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from toolcell.core import ConfigError, InvalidInputError, ToolcellError
from toolcell.core.text.install_hint import install_hint

from .csv_programs import cell_value, check_columns

MAGIC = b"PAR1"
"""The first bytes of each such file."""

_ROWS = 256
"""Rows that are read at once."""

_BATCH_BYTES = 16_777_216
"""Bytes of JSON lines that make a row group, and that are held meanwhile."""

_COLUMNS = ("id", "line", "status", "result", "error")
"""Those of a table of results: all but `line`, a number, are texts."""


def is_parquet(path: Path) -> bool:
    """Return True for the name of a Parquet file."""
    return path.suffix.lower() == ".parquet"


def parquet_rows(
    path: Path, file: IO[bytes], fields: Collection[str]
) -> Iterator[tuple[int, Callable[[], dict[str, Any]]]]:
    """Yield the number of each row, from 1, and a function that reads its fields.

    Columns of other names are not read; the fields have their names alone.

    Args:
        path: The name of the file, for errors.
        file: The file; it stays open.
        fields: The fields of a program.

    Raises:
        ConfigError: pyarrow is not installed.
        InvalidInputError: The file is not whole, has no column `code`, or two columns
            of one field.
    """
    number = itertools.count(1)
    with _reading(path) as parquet:
        # Otherwise all of the file is read, and kept, at the first row.
        table = parquet.ParquetFile(file, buffer_size=65_536, pre_buffer=False)
        names = table.schema_arrow.names
        known = [name for name in names if name in fields]
        others = dict.fromkeys(name for name in names if name not in fields)
        check_columns(f"{path} has", names, known)
        for rows in table.iter_batches(_ROWS, columns=known, use_threads=False):
            for at in range(rows.num_rows):
                yield next(number), partial(_fields, rows, at, others)


def _fields(rows: Any, at: int, others: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a row; what is null in it, or in an object of it, is none.

    Raises:
        InvalidInputError: A value has no counterpart in Python.
    """
    found = dict(others)
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        try:
            value = column[at].as_py()
        except (ValueError, OverflowError) as error:
            raise InvalidInputError(
                f"{name} cannot be read: {error}", hint="write it as text, or as JSON"
            ) from None
        if isinstance(value, str):
            value = cell_value(name, value)
        elif isinstance(value, dict):
            value = {key: each for key, each in value.items() if each is not None}
        if value is not None:
            found[name] = value
    return found


def lines_of(out: Path) -> Path:
    """Return the file of JSON lines from which a table of results is made.

    Raises:
        ConfigError: pyarrow is not installed.
        InvalidInputError: There is a table, and no results of which it was made.
    """
    _pyarrow(out)
    lines = out.with_name(f"{out.name}.jsonl")
    if out.exists() and not (lines.exists() and lines.stat().st_size):
        raise InvalidInputError(
            f"{out} is there already, and {lines.name} has no results",
            hint="name a new file, or one that `toolcell map` has made",
        )
    return lines


def write_table(lines: Path, out: Path) -> None:
    """Write results as a table, whole or not at all.

    Args:
        lines: The results, as JSON lines.
        out: The table; it has their fields, `result` and `error` as JSON.

    Raises:
        ToolcellError: It cannot be written.
    """
    unfit = import_module("pyarrow").ArrowException
    try:
        with tempfile.NamedTemporaryFile(dir=out.parent, delete=False) as part:
            try:
                _write(lines, part)
                part.flush()
                os.fsync(part.fileno())
                os.replace(part.name, out)
            except BaseException:
                Path(part.name).unlink(missing_ok=True)
                raise
    except (unfit, OSError, TypeError, ValueError) as error:
        raise ToolcellError(
            f"cannot write {out}: {getattr(error, 'strerror', None) or error}",
            hint=f"the results are whole in {lines}",
        ) from None


def _write(lines: Path, part: Any) -> None:
    arrow, parquet = import_module("pyarrow"), _pyarrow(lines)
    text, whole = arrow.large_string(), arrow.int64()
    schema = arrow.schema(
        [(name, whole if name == "line" else text) for name in _COLUMNS]
    )
    with lines.open("rb") as file, parquet.ParquetWriter(part, schema) as writer:
        for rows in _batches(file):
            writer.write_batch(arrow.RecordBatch.from_pylist(rows, schema))


def _batches(lines: Iterable[bytes]) -> Iterator[list[dict[str, Any]]]:
    rows, size = [], 0
    for text in lines:
        rows.append(_row(json.loads(text)))
        size += len(text)
        if size >= _BATCH_BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def _row(record: dict[str, Any]) -> dict[str, Any]:
    id_ = record["id"]
    record["id"] = None if id_ is None else str(id_)
    for name in ("result", "error"):
        if name in record:
            record[name] = json.dumps(record[name])
    return record


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    """Give pyarrow's module of Parquet to a block that reads a file with it."""
    parquet = _pyarrow(path)
    damaged = import_module("pyarrow").ArrowException
    try:
        yield parquet
    except (damaged, OSError) as error:
        raise InvalidInputError(
            f"{path} is no whole Parquet file: {error}", hint="name a whole file"
        ) from None


def _pyarrow(path: Path) -> Any:
    try:
        return import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigError(
            f"{path} is Parquet, which needs the extra 'parquet'",
            hint=install_hint("parquet"),
        ) from None
