"""Tables of the results of `toolcell map`, CSV and Parquet, of their JSON lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from toolcell.core import InvalidInputError, ToolcellError
from toolcell.core.storage.whole_files import written_whole

from .csv_programs import is_csv
from .parquet_files import is_parquet, pyarrow_for, write_parquet

COLUMNS = ("id", "line", "status", "meta", "options", "version", "result", "error")
"""Those of a table. What is an object in a result is JSON there."""


def lines_of(out: Path) -> Path:
    """Return the file of JSON lines of which a table is made, or `out` itself.

    Raises:
        ConfigError: pyarrow is not installed.
        InvalidInputError: There is a table, and no results of which it was made; or it
            would be compressed CSV.
    """
    if is_parquet(out):
        pyarrow_for(out)
    elif not is_csv(out):
        return out
    elif out.suffix.lower() == ".gz":
        raise InvalidInputError(
            f"{out} would not be compressed", hint="name it .csv, and compress it later"
        )
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
        out: The table, Parquet or CSV by its name.

    Raises:
        ToolcellError: It cannot be written.
    """
    try:
        with lines.open("rb") as file, written_whole(out) as part:
            rows = map(_row, file)
            if is_parquet(out):
                write_parquet(COLUMNS, rows, part)
            else:
                _write_csv(rows, part)
    except (OSError, TypeError, ValueError) as error:
        raise ToolcellError(
            f"cannot write {out}: {getattr(error, 'strerror', None) or error}",
            hint=f"the results are whole in {lines}",
        ) from None


def _write_csv(rows: Iterable[Sequence[Any]], part: IO[bytes]) -> None:
    text = io.TextIOWrapper(part, "utf-8", newline="")
    try:
        csv.writer(text).writerows([COLUMNS])
        csv.writer(text).writerows(rows)
    finally:
        text.detach()


def _row(line: bytes) -> list[Any]:
    record = json.loads(line)
    if record["id"] is not None:
        record["id"] = str(record["id"])
    found = map(record.get, COLUMNS)
    return [json.dumps(each) if isinstance(each, dict) else each for each in found]
