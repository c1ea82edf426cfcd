"""Records of an audit log are searched from the newest on, some at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from toolcell.guard import AuditLog
from toolcell.guard.audit import reader
from toolcell.guard.spi import audit_search

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.promise("D7")
def test_a_search_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now = tmp_path / "audit.jsonl", [0.0]
    with AuditLog(path, rotate_bytes=4_096, clock=lambda: now[0]) as log:
        for number in range(60):
            now[0] = (BEGIN + timedelta(hours=number)).timestamp()
            log.append("note", number=number, even=number % 2 == 0)
    monkeypatch.setattr(reader, "SEARCH_BYTES", 2_000)

    def found(**wanted: datetime) -> list[int]:
        numbers, before = [], None
        for _ in range(100):
            page = audit_search(
                path,
                lambda each: bool(each.get("even")),
                before=before,
                limit=4,
                **wanted,
            )
            numbers += [entry.record["number"] for entry in page.entries]
            before = page.next
            if before is None:
                return numbers
        raise AssertionError("the search does not end")

    day = timedelta(days=1)
    assert found() == [*range(58, -1, -2)]
    assert found(since=BEGIN + day) == [*range(58, 23, -2)]
    assert found(until=BEGIN + day) == [*range(22, -1, -2)]
