"""Reads an audit log by number and by time, without reading all of it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from .log_files import AuditPart, audit_parts

SEARCH_BYTES = 4 * 1_048_576
"""Bytes of the log that one search of it reads. When it is reached the search answers
with what it has found, and the number to go on with."""

SCAN_BYTES = 16 * 1_048_576
"""Bytes of the log that a search for a call reads. When it is reached the search ends
with what it has found."""

MAX_PAGE = 1_000
"""Most records of a page. A larger page is cut to it."""

_START = re.compile(rb'\{"seq":([0-9]{1,18}),"time":"([0-9TZ:.-]{1,64})"')
_CHUNK_BYTES = 65_536
_UNREADABLE_LINES = 100
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"

_Key = Callable[[re.Match[bytes]], Any]


class AuditEntry(NamedTuple):
    """One line of a log, as it stands there: reading verifies nothing."""

    seq: int | None
    """Its number; None if the line is not that of a record."""

    record: Mapping[str, Any]
    """Its members; empty if it cannot be read."""


def audit_page(
    path: str | Path, *, before: int | None = None, limit: int = 100
) -> list[AuditEntry]:
    """Return records of a log by their numbers, the newest first.

    The place of a record is found by bisection, so a page costs the same anywhere in
    the log, and in each of its files.

    Args:
        path: The file that is written. It may be in use.
        before: Only records with a lower number. None: the newest.
        limit: Most records; default 100, at most 1,000.

    Raises:
        AuditError: A file cannot be opened.
    """
    left, found = min(limit, MAX_PAGE), list[AuditEntry]()
    with audit_parts(path) as parts:
        for part in reversed(parts):
            if left <= 0:
                break
            end = part.size if before is None else _offset(part, _number, before)
            for line in _lines_before(part, end, left):
                found.append(_entry(line))
                left -= 1
    return found


class AuditFound(NamedTuple):
    """Records that fit, newest first."""

    entries: list[AuditEntry]
    next: int | None
    """`before` of the search of older ones. None: there are none."""


def audit_search(
    path: str | Path,
    fits: Callable[[Mapping[str, Any]], bool],
    *,
    before: int | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 100,
) -> AuditFound:
    """Return records of a log that fit, by looking at one after the other.

    Args:
        path: The file that is written. It may be in use.
        fits: Tells whether a record fits.
        before: Only records with a lower number. None: the newest.
        since: Only those of then or later; an aware datetime.
        until: Only those of before then.
        limit: Most records; default 100.

    Raises:
        AuditError: A file cannot be opened.
    """
    found, left, last = list[AuditEntry](), SEARCH_BYTES, before
    begins = b"" if since is None else _written_time(since)
    with audit_parts(path) as parts:
        for part in reversed(parts):
            end = part.size if before is None else _offset(part, _number, before)
            if until is not None:
                end = min(end, _offset(part, _time, _written_time(until)))
            for line in _lines_before(part, end, sys.maxsize):
                start = _START.match(line)
                if len(found) == limit or left <= 0:
                    return AuditFound(found, last)
                if start is not None and _time(start) < begins:
                    return AuditFound(found, None)
                left -= len(line)
                entry = _entry(line)
                last = entry.seq or last
                if fits(entry.record):
                    found.append(entry)
    return AuditFound(found, None)


def audit_of_call(
    path: str | Path, call_id: str, *, since: datetime, until: datetime
) -> list[AuditEntry]:
    """Return what a log says about a call, oldest first.

    Args:
        path: The file that is written. It may be in use.
        call_id: The call, as the log names it: without its secrets.
        since: The earliest time of such a record; an aware datetime.
        until: The latest time.

    Raises:
        AuditError: A file cannot be opened.
    """
    begins, ends = (_written_time(bound) for bound in (since, until))
    wanted = json.dumps(call_id).encode()
    found, left = [], SCAN_BYTES
    with audit_parts(path) as parts:
        for part in parts:
            offset = _offset(part, _time, begins)
            for line in _lines_after(part, offset):
                left -= len(line)
                start = _START.match(line)
                if left < 0 or (start is not None and _time(start) > ends):
                    break
                if wanted in line:
                    entry = _entry(line)
                    if entry.record.get("call_id") == call_id:
                        found.append(entry)
    return found


def _number(start: re.Match[bytes]) -> int:
    return int(start[1])


def _time(start: re.Match[bytes]) -> bytes:
    return start[2]


def _written_time(time: datetime) -> bytes:
    return time.astimezone(UTC).strftime(_TIME).encode()


def _offset(part: AuditPart, key: _Key, wanted: Any) -> int:
    """Return the place of the first line of a file whose key is not below `wanted`."""
    low, high = 0, part.size
    while low < high:
        middle = (low + high) // 2
        part.file.seek(max(middle - 1, 0))
        if middle:
            part.file.readline()
        found = _first_record(part, high)
        if found is not None and key(found) < wanted:
            low = part.file.tell()
        else:
            high = middle
    return low


def _first_record(part: AuditPart, end: int) -> re.Match[bytes] | None:
    """Return the first record that begins here and before `end`; go behind it."""
    for _ in range(_UNREADABLE_LINES):
        if part.file.tell() >= end:
            return None
        found = _START.match(part.file.readline())
        if found is not None:
            return found
    return None


def _lines_before(part: AuditPart, end: int, count: int) -> Iterator[bytes]:
    """Yield the last whole lines that end here or before, the last one first."""
    rest, place = b"", end
    while count > 0 and (place > 0 or rest):
        if b"\n" not in rest[:-1] and place > 0:
            size = min(_CHUNK_BYTES, place)
            place -= size
            part.file.seek(place)
            rest = part.file.read(size) + rest
            continue
        cut = rest.rfind(b"\n", 0, -1) + 1
        yield rest[cut:]
        rest = rest[:cut]
        count -= 1


def _lines_after(part: AuditPart, offset: int) -> Iterator[bytes]:
    part.file.seek(offset)
    left = part.size - offset
    while left > 0 and (line := part.file.readline(left)):
        left -= len(line)
        yield line


def _entry(line: bytes) -> AuditEntry:
    start = _START.match(line)
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if start is None or not isinstance(record, dict):
        return AuditEntry(None, {})
    return AuditEntry(_number(start), record)
