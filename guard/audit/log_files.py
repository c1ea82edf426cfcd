"""The files of an audit log: the one that is written, and those before it.

A log that has grown to its size is *rotated*: its file gets the number of its last
record as its name, such as `audit.jsonl.000000000005000`, and the log goes on in a new
file. The chain goes through: the first record of a file follows the last of the one
before. The last record of each file but the newest is `rotated`, so that other writers,
who have the old file open, know that they must go on in the next one.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from toolcell.core import AuditError

_DIGITS = 15
_NUMBER = re.compile(r"\.[0-9]{15}")
_TAIL_BYTES = 4_096
_START = rb'\{"seq":[0-9]{1,18},"time":"[^"]{1,64}","event":'
_ROTATED = re.compile(_START + rb'"rotated",')
_PRUNED = re.compile(
    _START + rb'"pruned","file":"[^"]{1,1024}","head":"([0-9]{1,18}:[0-9a-f]{64})",'
)


class AuditPart(NamedTuple):
    """One file of an audit log, open for reading."""

    path: Path
    file: BinaryIO
    size: int
    """Its bytes when it was opened, up to the end of a whole write."""


def rotated_path(path: Path, last: int) -> Path:
    """Return the name of the file of a log that ends with this record."""
    return path.with_name(f"{path.name}.{last:0{_DIGITS}d}")


def rotated_files(path: Path) -> list[Path]:
    """Return the files of a log but the one that is written, oldest first."""
    start = len(path.name)
    names = [
        each
        for each in sorted(path.parent.glob(f"{path.name.replace('[', '[[]')}.*"))
        if _NUMBER.fullmatch(each.name[start:])
    ]
    # A rotation that was begun, and not finished, left a second name of a file.
    places = {_place(path)} if path.exists() else set()
    found: list[Path] = []
    for name in reversed(names):
        if (place := _place(name)) not in places:
            places.add(place)
            found.insert(0, name)
    return found


def is_rotated(line: bytes) -> bool:
    """Return True for the record that is last in its file."""
    return _ROTATED.match(line) is not None


def pruned_head(line: bytes) -> str | None:
    """Return the last head of a file that was deleted, if this record says so."""
    match = _PRUNED.match(line)
    return None if match is None else match[1].decode("ascii")


def last_lines(fd: int, size: int) -> tuple[list[bytes], int]:
    """Return the last two whole lines of a file, and the offset of their end."""
    span = _TAIL_BYTES
    while True:
        start = max(0, size - span)
        data = os.pread(fd, size - start, start)
        end = data.rfind(b"\n") + 1
        lines = data[:end].splitlines(keepends=True)
        # The first line may lack its beginning.
        if len(lines) > 2 or not start:
            return lines[-2:], start + end
        span *= 4


@contextmanager
def audit_parts(path: str | Path) -> Iterator[list[AuditPart]]:
    """Open the files of an audit log, oldest first, as of one moment.

    Args:
        path: The log. It may be in use.

    Raises:
        AuditError: A file cannot be opened.
    """
    path = Path(path)
    with ExitStack() as files:
        try:
            parts = _opened(path, files)
        except OSError as error:
            raise AuditError(
                f"the audit log {path} cannot be read: {error.strerror}",
                hint="name a log that exists and that this user may read",
            ) from error
        yield parts


def _opened(path: Path, files: ExitStack) -> list[AuditPart]:
    while True:
        log = files.enter_context(path.open("rb"))
        # Between two writes: a later line is no part of it, and none is rotated.
        fcntl.flock(log, fcntl.LOCK_SH)
        try:
            if _place(path) == _place(log.fileno()):
                older = [
                    (file, files.enter_context(file.open("rb")))
                    for file in rotated_files(path)
                ]
                return [
                    AuditPart(each, file, os.fstat(file.fileno()).st_size)
                    for each, file in [*older, (path, log)]
                ]
        finally:
            fcntl.flock(log, fcntl.LOCK_UN)


def _place(file: Path | int) -> tuple[int, int]:
    state = os.stat(file)
    return state.st_dev, state.st_ino
