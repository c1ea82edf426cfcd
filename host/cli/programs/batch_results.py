"""The file of results of `toolcell map`, which outlives a crash."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections import Counter
from importlib.metadata import version
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, Self

from toolcell.core import InvalidInputError, ToolcellError
from toolcell.sandbox import JobResult

_BEGINNING = b'{"id": '
"""Of each line."""


class _Row(NamedTuple):
    """The part of a result that comes from the row of its program."""

    id: str | int | None
    own: dict[str, Any]
    """Its columns that are no fields of a program."""


class ResultsFile:
    """A file with a result in each line, whole lines only; it goes on after a crash.

    A line is written in the moment in which its program has ended. What an earlier
    process left is read first, and a last line that it did not finish is cut off.

    Args:
        path: The file; it is made where there is none, and read again, so `-` is none.
        options: The options of the cells, by name; each result has them.

    Raises:
        InvalidInputError: It cannot be written, holds something else or results with
            other options, or another process writes it.
    """

    def __init__(self, path: Path, options: dict[str, Any]) -> None:
        self._path = path
        self._options = options
        self._made_by = {"options": options, "version": version("toolcell")}
        self._rows: dict[int, _Row] = {}
        self.ids: set[str | int] = set()
        """Ids that have a result."""

        self.lines: set[int] = set()
        """Numbers of lines that have a result, of those without their own id."""

        self.statuses: Counter[str] = Counter()
        """The number of results by status."""

        self._file = self._open()
        try:
            self._load()
        except BaseException:
            self._file.close()
            raise
        self.before = self.size
        """Results that were there before."""

    @property
    def size(self) -> int:
        """The number of its results."""
        return self.statuses.total()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def expect(self, number: int, id_: str | int | None, own: dict[str, Any]) -> None:
        """Remember the id and the own columns of a line until its result comes."""
        self._rows[number] = _Row(id_, own)

    def add(self, ended: JobResult) -> None:
        """Write what came of a line.

        Args:
            ended: Its `id` is the number of the line.

        Raises:
            ToolcellError: It cannot be written.
        """
        assert isinstance(ended.id, int)
        row = self._rows.pop(ended.id)
        record: dict[str, Any] = {
            "id": row.id,
            "line": ended.id,
            "status": ended.status,
            **({"meta": row.own} if row.own else {}),
            **self._made_by,
        }
        if ended.error is not None:
            record["error"] = ended.error.model_dump()
        elif ended.result is not None:
            record["result"] = ended.result.to_json()
        data = memoryview(json.dumps(record).encode() + b"\n")
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise ToolcellError(
                f"cannot write {self._path}: {error.strerror}",
                hint="make room; the same command goes on where this one ended",
            ) from None
        self._count(record)

    def _open(self) -> FileIO:
        if str(self._path) == "-":
            raise _not_plain(self._path)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o600)
        except OSError as error:
            raise InvalidInputError(
                f"cannot write {self._path}: {error.strerror}",
                hint="name a file of a folder that is there",
            ) from None
        file = FileIO(descriptor, "r+b")
        with contextlib.ExitStack() as undo:
            undo.callback(file.close)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _not_plain(self._path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InvalidInputError(
                    f"another process writes {self._path}",
                    hint="let it end, or name another file",
                ) from None
            undo.pop_all()
        return file

    def _load(self) -> None:
        whole = 0
        # Another file object, whose buffer this one must not share.
        with self._path.open("rb") as lines:
            for text in lines:
                if not text.endswith(b"\n"):
                    if not text.startswith(_BEGINNING[: len(text)]):
                        raise self._foreign()
                    break
                self._read(text)
                whole += len(text)
        self._file.truncate(whole)
        self._file.seek(whole)

    def _read(self, text: bytes) -> None:
        try:
            if not text.startswith(_BEGINNING):
                raise ValueError
            record = json.loads(text)
            self._count(record)
            if "line" in record and "options" not in record:
                raise self._earlier()
            before = dict(record["options"])
        except (KeyError, TypeError, ValueError):
            raise self._foreign() from None
        if before != self._options:
            raise self._other_options(before)

    def _foreign(self) -> InvalidInputError:
        return InvalidInputError(
            f"{self._path} has lines that are no results of `toolcell map`",
            hint="name a new file, or one of the same programs",
        )

    def _earlier(self) -> InvalidInputError:
        return InvalidInputError(
            f"{self._path} has results of an earlier toolcell, without their options",
            hint="name a new file",
        )

    def _other_options(self, before: dict[str, Any]) -> InvalidInputError:
        differences = "; ".join(
            f"--{name.replace('_', '-')} {was}, now {now}"
            for name in {**before, **self._options}
            if (was := before.get(name)) != (now := self._options.get(name))
        )
        return InvalidInputError(
            f"{self._path} has results with other options: {differences}",
            hint="give the same options, or name another file",
        )

    def _count(self, record: dict[str, Any]) -> None:
        if record["id"] is None:
            self.lines.add(record["line"])
        else:
            self.ids.add(record["id"])
        self.statuses[record["status"]] += 1


def _not_plain(path: Path) -> InvalidInputError:
    return InvalidInputError(
        f"{path} is not a plain file", hint="name a file that can be read again"
    )
