"""Records as JSON lines and as CSV, a page at a time."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from functools import partial
from typing import Any

import anyio.to_thread

from toolcell.tools import Records
from toolcell.tools.spi import NumberedRecord

PAGE_RECORDS = 200
"""Records that are in memory at once."""

FORMS = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
"""The forms, and their media types."""

COLUMNS = (
    *("number", "started_at", "agent_id", "tool_name", "outcome", "reason", "rule"),
    *("error_kind", "duration_ms", "call_id", "parent_id", "arguments", "usage"),
)
"""The columns of CSV. Results are in JSON lines alone."""

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
    csv.writer(text).writerow(_cell(each) for each in values)
    return text.getvalue().encode("utf-8", "backslashreplace")


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value)
    text = "" if value is None else str(value)
    # A spreadsheet runs a cell that begins like a formula. An apostrophe makes it text.
    return f"'{text}" if text.startswith(_FORMULAS) else text
