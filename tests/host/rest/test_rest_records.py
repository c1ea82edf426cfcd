"""A page of large records leaves the interpreter to others."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from types import FrameType
from typing import Any

from toolcell.host.rest import bodies
from toolcell.host.rest.views import record_view
from toolcell.tools import ToolExecutionRecord
from toolcell.tools.spi import NumberedRecord

VALUES = 10_000


def large_record() -> ToolExecutionRecord:
    return ToolExecutionRecord(
        call_id="1",
        tool_name="count",
        agent_id="a",
        parent_id=None,
        tool_version="1",
        arguments={"values": list(range(VALUES))},
        verdict="allowed",
        status="ok",
        started_at=datetime.now(UTC),
        duration_ms=1.0,
        result={"values": [{"a": "b"}] * 10},
        usage={"wall_ms": 1},
    )


def test_no_value_of_a_record_is_looked_at_one_by_one() -> None:
    numbered, calls = NumberedRecord(1, large_record()), list[str]()
    # The first use of a model builds it.
    record_view(numbered).model_dump_json()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        calls.append(event)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        text = record_view(numbered).model_dump_json()
    finally:
        sys.setprofile(before)

    assert len(calls) < VALUES / 10
    assert bodies.Record.model_validate_json(text) == record_view(numbered)
