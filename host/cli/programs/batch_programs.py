"""The file of programs of `toolcell map`."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import os
import shutil
import stat
import sys
import tempfile
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any, Self, cast

from pydantic import (
    Field,
    JsonValue,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
)

from toolcell.core import ErrorInfo, InvalidInputError
from toolcell.core.models import FrozenModel
from toolcell.core.text.strict_json import read_json
from toolcell.sandbox import Job, JobResult, Limits

from .batch_results import ResultsFile
from .csv_programs import csv_rows, is_csv
from .parquet_files import MAGIC, parquet_rows, row_count

MAX_LINE_BYTES = 33_554_432
"""Bytes of a line of programs, 32 MiB. When it is reached the line is not run, and its
result says so."""

_JobId = Annotated[StrictStr, Field(max_length=1000)] | StrictInt
_ID = TypeAdapter[str | int | None](_JobId | None)
_KIND_BYTES = 65_536
_OTHER_FORMS = {
    b"ARROW1": "Arrow",
    b"PK\x03\x04": "an archive or a spreadsheet",
    b"(\xb5/\xfd": "compressed by zstd",
    b"SQLite format 3": "a database",
}
"""Forms that are refused by name, by their first bytes."""


class ProgramLine(FrozenModel):
    """One line of programs."""

    refusal = InvalidInputError
    refusal_hint = "fields are id, code, inputs, language, files and limits"

    id: _JobId | None = None
    """Names its result; each id of a file once."""

    code: str
    inputs: dict[str, JsonValue] | None = None
    language: str = "python"
    files: dict[str, str] | None = None
    """Texts of the work dir, by path."""

    limits: Limits | None = None


class ProgramsFile:
    """A file with a program in each line, or in each row, read as it is needed.

    It is CSV if its name says so, and Parquet if its first bytes do. Lines and CSV may
    be compressed by gzip. What can be read only once, such as a pipe, is copied to a
    temporary file first.

    Args:
        path: The file; `-` is standard input.

    Raises:
        ConfigError: It is Parquet, and pyarrow is not installed.
        InvalidInputError: It cannot be read, or is neither JSON lines, CSV nor Parquet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with contextlib.ExitStack() as opened:
            self._file = _opened(path, opened)
            try:
                start = self._file.read(_KIND_BYTES)
                _check_kind(path, start)
                self._is_parquet = start.startswith(MAGIC)
                if self._is_parquet and isinstance(self._file, gzip.GzipFile):
                    raise InvalidInputError(
                        f"{path} is Parquet in gzip, which cannot be read in parts",
                        hint="unpack it; Parquet compresses its columns itself",
                    )
                self.size = self._count()
                """Programs in it; blank lines are none."""
            except (OSError, EOFError, zlib.error) as error:
                raise InvalidInputError(
                    f"cannot read {path}: {error}", hint="name a whole file"
                ) from None
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _count(self) -> int:
        if self._is_parquet:
            return row_count(self._path, self._file)
        return sum(1 for _ in self._rows())

    def _rows(self) -> Iterator[tuple[int, Callable[[], dict[str, Any]]]]:
        """Yield the number of each line, and a function that reads its fields."""
        if is_csv(self._path):
            yield from csv_rows(self._path, self._file, MAX_LINE_BYTES)
            return
        self._file.seek(0)
        if self._is_parquet:
            fields = ProgramLine.model_fields
            yield from parquet_rows(self._path, self._file, fields)
            return
        if self._file.read(len(BOM_UTF8)) != BOM_UTF8:
            self._file.seek(0)
        for number, text in _numbered_lines(self._file):
            yield number, partial(_read_fields, text)

    def without_result(self, results: ResultsFile) -> Iterator[Job]:
        """Yield what has no result yet, as jobs whose `id` is the number of the line.

        A line that is no program gets its result at once.
        """
        seen: set[str | int] = set()
        for number, read_fields in self._rows():
            if number in results.lines:
                continue
            line: ProgramLine | InvalidInputError
            id_: str | int | None = None
            own: dict[str, Any] = {}
            try:
                fields = read_fields()
                own = _own_columns(fields)
                id_ = _id_of(fields)
                if id_ in seen:
                    id_ = None
                    raise InvalidInputError(
                        f"the id {fields['id']!r} stands in an earlier line",
                        hint="give each program its own id",
                    )
                program = {key: fields[key] for key in fields.keys() - own.keys()}
                line = ProgramLine.model_validate(program)
            except InvalidInputError as error:
                line = error
            if id_ is not None:
                seen.add(id_)
                if id_ in results.ids:
                    continue
            results.expect(number, id_, own)
            if isinstance(line, InvalidInputError):
                why = ErrorInfo.of(line)
                results.add(JobResult(index=number - 1, id=number, error=why))
                continue
            yield Job(
                line.code,
                id=number,
                inputs=line.inputs,
                language=line.language,  # type: ignore[arg-type] # checked by run
                files=line.files,
                limits=line.limits,
            )


def _opened(path: Path, opened: contextlib.ExitStack) -> IO[bytes]:
    """Return a file that can be read again and again, and that a stack closes.

    Raises:
        InvalidInputError: It cannot be read.
    """
    try:
        file: IO[bytes] = sys.stdin.buffer
        if str(path) != "-":
            file = opened.enter_context(path.open("rb"))
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            copy = opened.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(file, copy)
            file = copy
        file.seek(0)
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
    except OSError as error:
        raise InvalidInputError(
            f"cannot read {path}: {error.strerror}",
            hint="name a file with one JSON object in each line",
        ) from None
    return cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file


def _check_kind(path: Path, start: bytes) -> None:
    """Check that a file may have a program in each line. Raises InvalidInputError."""
    if start.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise InvalidInputError(
            f"{path} is text in UTF-16", hint="write it in UTF-8, as JSON is"
        )
    if is_csv(path) and start.startswith(MAGIC):
        raise InvalidInputError(
            f"{path} is Parquet, and its name says CSV", hint="name it .parquet"
        )
    for magic, form in _OTHER_FORMS.items():
        if start.startswith(magic):
            raise InvalidInputError(
                f"{path} is {form}", hint="programs are JSON lines, CSV or Parquet"
            )
    first = start.removeprefix(BOM_UTF8).lstrip().partition(b"\n")[0].strip()
    if first in (b"[", b"{") or first.startswith(b"[{"):
        raise InvalidInputError(
            f"{path} is one JSON text and not one in each line",
            hint="`jq -c '.[]'` makes lines of an array",
        )


def _numbered_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Yield lines that are not blank; None stands for one that is too long."""
    for number in itertools.count(1):
        text = file.readline(MAX_LINE_BYTES + 1)
        if not text:
            return
        if len(text) > MAX_LINE_BYTES:
            while text and not text.endswith(b"\n"):
                text = file.readline(MAX_LINE_BYTES)
            yield number, None
        elif text.strip():
            yield number, text


def _read_fields(text: bytes | None) -> dict[str, Any]:
    if text is None:
        raise InvalidInputError(
            f"the line has more than {MAX_LINE_BYTES} bytes",
            hint="pass large data in a mount or a package",
        )
    try:
        value = read_json(text)
    except ValueError as error:
        raise InvalidInputError(
            f"the line is not JSON: {error}", hint="write one JSON object in each line"
        ) from None
    if not isinstance(value, dict):
        raise InvalidInputError(
            "the line is no JSON object", hint='write it like {"id": 1, "code": "1"}'
        )
    return value


def _own_columns(fields: dict[str, Any]) -> dict[str, Any]:
    """Return what a data set has beside its programs."""
    known = ProgramLine.model_fields
    return {name: value for name, value in fields.items() if name not in known}


def _id_of(fields: dict[str, Any]) -> str | int | None:
    """Return the id of a line; None if it has none that can be one."""
    try:
        return _ID.validate_python(fields.get("id"))
    except ValidationError:
        return None
