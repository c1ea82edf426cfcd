"""Records as JSON texts, as files have them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from pydantic_core import from_json, to_json

from .record import ToolExecutionRecord

_HALF_A_PAIR = re.compile("[\ud800-\udfff]")


def written(record: ToolExecutionRecord) -> str:
    """Return a record as JSON."""
    values = record._asdict()
    values["usage"] = dict(record.usage)
    values["started_at"] = record.started_at.astimezone(UTC).isoformat()
    try:
        return to_json(values).decode()
    except ValueError:
        # A traceback may have half a surrogate pair, which is no character.
        values["error_detail"] = _HALF_A_PAIR.sub(_named, values["error_detail"] or "")
        return to_json(values).decode()


def read(body: str) -> ToolExecutionRecord:
    """Return the record that was written."""
    values = from_json(body)
    values["started_at"] = datetime.fromisoformat(values["started_at"])
    return ToolExecutionRecord(**values)


def _named(half: re.Match[str]) -> str:
    return f"\\u{ord(half[0]):x}"
