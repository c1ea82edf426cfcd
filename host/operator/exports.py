"""Records and the audit log as JSON lines and as CSV, a page at a time."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread

from toolcell.guard.spi import audit_search
from toolcell.tools import Records
from toolcell.tools.spi import NumberedRecord

from .filters import fits_audit

PAGE_RECORDS = 200
"""Records that are in memory at once."""

FORMS = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
"""The forms, and their media types."""

COLUMNS = (
    *("number", "started_at", "agent_id", "tool_name", "outcome", "reason", "rule"),
    *("error_kind", "duration_ms", "call_id", "parent_id", "arguments", "usage"),
)
"""The columns of CSV. Results are in JSON lines alone."""

AUDIT_COLUMNS = ("seq", "time", "event", "agent_id", "tool", "call_id", "record")
"""The columns of CSV of the audit log; the last one has the whole record as JSON."""

_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


async def export(
    records: Records, wanted: Mapping[str, Any], form: str
) -> AsyncGenerator[bytes, None]:
    """Yield the records that fit, newest first.

    Args:
        records: The store.
        wanted: Filters, as arguments of `Records.page`.
        form: `jsonl` or `csv`.

    Raises:
        StoreUnavailableError: They cannot be read.
    """
    before = None
    if form == "csv":
        yield row_of(COLUMNS)
    while True:
        page = partial(records.page, **wanted, before=before, limit=PAGE_RECORDS)
        found = await anyio.to_thread.run_sync(page)
        if not found:
            return
        facts = map(facts_of, found)
        lines = map(as_row, facts) if form == "csv" else map(as_line, facts)
        yield b"".join(lines)
        before = found[-1].number


async def export_audit(
    path: Path, wanted: Mapping[str, Any], form: str
) -> AsyncGenerator[bytes, None]:
    """Yield the records of an audit log that fit, newest first, as they stand there.

    Args:
        path: The log.
        wanted: Filters, as `read_filters` returns them.
        form: `jsonl` or `csv`.

    Raises:
        AuditError: The log cannot be read.
    """
    rest = dict(wanted)
    times = {name: rest.pop(name, None) for name in ("since", "until")}
    search = partial(audit_search, path, partial(fits_audit, rest), **times)
    before = None
    if form == "csv":
        yield row_of(AUDIT_COLUMNS)
    while True:
        page = partial(search, before=before, limit=PAGE_RECORDS)
        found = await anyio.to_thread.run_sync(page)
        records = (entry.record for entry in found.entries if entry.seq is not None)
        yield b"".join(map(_audit_row if form == "csv" else as_line, records))
        if found.next is None:
            return
        before = found.next


def _audit_row(record: Mapping[str, Any]) -> bytes:
    *named, _ = AUDIT_COLUMNS
    return row_of([*(record.get(name) for name in named), record])


def facts_of(found: NumberedRecord) -> dict[str, Any]:
    """Return a record as one JSON object."""
    record = found.record
    return {
        "number": found.number,
        **record._asdict(),
        "outcome": record.outcome,
        "usage": dict(record.usage),
        "started_at": record.started_at.isoformat(timespec="milliseconds"),
        "duration_ms": round(record.duration_ms, 3),
    }


def as_line(facts: Mapping[str, Any]) -> bytes:
    """Return a record as a line of JSON."""
    return json.dumps(facts).encode() + b"\n"


def as_row(facts: Mapping[str, Any]) -> bytes:
    """Return a record as a row of CSV."""
    return row_of(facts[name] for name in COLUMNS)


def row_of(values: Iterable[Any]) -> bytes:
    """Return values as a row of CSV; no spreadsheet runs one as a formula."""
    text = io.StringIO()
    csv.writer(text).writerow(_cell(value) for value in values)
    return text.getvalue().encode("utf-8", "backslashreplace")


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value)
    text = "" if value is None else str(value)
    # A spreadsheet runs a cell that begins like a formula. An apostrophe makes it text.
    return f"'{text}" if text.startswith(_FORMULAS) else text
