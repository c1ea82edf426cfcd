"""Records for tests of their stores."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from toolcell.tools import ToolExecutionRecord

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def record(call_id: str = "1", **changes: Any) -> ToolExecutionRecord:
    """Return a record of a call of `add` that went well, at noon."""
    fields: dict[str, Any] = {
        "call_id": call_id,
        "tool_name": "add",
        "agent_id": "a",
        "parent_id": None,
        "tool_version": "1.0.0",
        "arguments": {},
        "verdict": "allowed",
        "status": "ok",
        "started_at": NOON,
        "duration_ms": 1.0,
    }
    return ToolExecutionRecord(**{**fields, **changes})
