"""A page of large records leaves the interpreter to others."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from toolcell.core import event_loop
from toolcell.core.event_loop import beside_loop
from toolcell.host.rest import bodies
from toolcell.host.rest.records import written_page
from toolcell.host.rest.views import record_view
from toolcell.tools import ToolExecutionRecord
from toolcell.tools.spi import NumberedRecord
from toolcell.tools.stores.records import MemoryRecords

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


@pytest.mark.anyio
async def test_a_page_rests_as_long_as_it_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records, rests = MemoryRecords(), list[float]()
    for _ in range(30):
        records.add(large_record())
    clock = SimpleNamespace(sleep=rests.append, thread_time=time.thread_time)
    monkeypatch.setattr(event_loop, "time", clock)

    def work() -> tuple[bytes, float]:
        start = time.thread_time()
        page = written_page(records.page, None, 100)
        return page, time.thread_time() - start

    page, worked = await beside_loop("a", work)

    assert page.count(b'"call_id"') == 30
    assert worked / 2 < sum(rests) <= worked
