"""Records as JSON texts, as files have them."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from .record import ToolExecutionRecord


def written(record: ToolExecutionRecord) -> str:
    """Return a record as JSON."""
    values = record._asdict()
    values["usage"] = dict(record.usage)
    values["started_at"] = record.started_at.astimezone(UTC).isoformat()
    return json.dumps(values, ensure_ascii=False, allow_nan=False)


def read(body: str) -> ToolExecutionRecord:
    """Return the record that was written."""
    values = json.loads(body)
    values["started_at"] = datetime.fromisoformat(values["started_at"])
    return ToolExecutionRecord(**values)
