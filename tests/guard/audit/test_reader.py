"""A log read by number and by time, in all of its files, without reading all of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import AuditError
from toolcell.guard import AuditHead, AuditLog, verify_audit
from toolcell.guard.audit import log_files
from toolcell.guard.audit.log_files import AuditPart
from toolcell.guard.spi import audit_of_call, audit_page

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def filled(folder: Path, count: int, *, seconds: float = 1.0) -> Path:
    """Write a log of several files, one record a second."""
    path, now = folder / "audit.jsonl", [NOON.timestamp()]
    with AuditLog(path, rotate_bytes=4_096, clock=lambda: now[0]) as log:
        for number in range(count):
            call = f"call {number // 2}"
            log.append("note", number=number, call_id=call, text="x" * (number % 90))
            now[0] += seconds
    assert count < 40 or len(list(folder.glob("audit.jsonl.0*"))) > 2
    return path


def all_numbers(path: Path) -> list[int]:
    with log_files.audit_parts(path) as found:
        return [json.loads(line)["seq"] for part in found for line in part.file]


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_pages_follow_each_other_through_the_files(tmp_path: Path, limit: int) -> None:
    path = filled(tmp_path, 150)
    seen: list[int | None] = []
    before: int | None = None
    while page := audit_page(path, before=before, limit=limit):
        assert len(page) == limit or page[-1].seq == 1
        seen += [each.seq for each in page]
        before = page[-1].seq

    assert seen == all_numbers(path)[::-1]


def test_every_number_is_found(tmp_path: Path) -> None:
    path = filled(tmp_path, 60)
    for number in all_numbers(path):
        [found] = audit_page(path, before=number + 1, limit=1)
        assert found.seq == found.record["seq"] == number


def test_a_page_reads_a_part_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now = tmp_path / "audit.jsonl", NOON.timestamp()
    with AuditLog(path, clock=lambda: now) as log:
        for number in range(20_000):
            log.append("note", number=number, text="x" * 100)
    read = []

    class Counted:
        def __init__(self, file: Any) -> None:
            self._file = file

        def __getattr__(self, name: str) -> Any:
            method = getattr(self._file, name)
            if not name.startswith("read"):
                return method

            def counting(*size: int) -> bytes:
                data: bytes = method(*size)
                read.append(len(data))
                return data

            return counting

    opened: Any = getattr(log_files, "_opened")  # noqa: B009

    def counted(path: Path, files: Any) -> list[AuditPart]:
        return [each._replace(file=Counted(each.file)) for each in opened(path, files)]

    monkeypatch.setattr(log_files, "_opened", counted)
    page = audit_page(path, before=10_000, limit=20)

    assert [each.seq for each in page] == list(range(9_999, 9_979, -1))
    assert 0 < sum(read) < 200_000 < path.stat().st_size


def test_what_a_log_says_of_a_call_is_found_by_its_time(tmp_path: Path) -> None:
    path = filled(tmp_path, 150)
    begins = NOON + timedelta(seconds=80)
    found = audit_of_call(path, "call 40", since=begins, until=begins)
    both = audit_of_call(
        path, "call 40", since=begins, until=begins + timedelta(seconds=1)
    )

    assert [each.record["number"] for each in found] == [80]
    assert [each.record["number"] for each in both] == [80, 81]
    assert audit_of_call(path, "call 4", since=begins, until=begins) == []


def test_lines_that_are_no_records_are_shown_as_such(tmp_path: Path) -> None:
    path = filled(tmp_path, 30)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3:3] = [b"\xff" * 5_000 + b"\n", b"[1]\n"]
    path.write_bytes(b"".join([*lines, b'{"seq": torn']))
    page = audit_page(path, limit=1_000)

    assert [each.seq for each in page].count(None) == 3
    assert page[0] == (None, {})
    numbers = [each.seq for each in page if each.seq is not None]
    assert numbers == sorted(numbers, reverse=True)
    with pytest.raises(AuditError):
        audit_page(tmp_path / "no such log")


def test_a_check_tells_how_far_it_is_and_can_be_ended(tmp_path: Path) -> None:
    path, told = tmp_path / "audit.jsonl", []
    with AuditLog(path) as log:
        for _ in range(1_000):
            log.append("note", text="x" * 4_000)
        head = log.head()
    report = verify_audit(
        path, anchors=[head], on_progress=lambda done, total: told.append((done, total))
    )

    assert report.ok
    assert report.head == AuditHead.parse(str(head))
    size = path.stat().st_size
    assert [total for _, total in told] == [size] * (size // 1_048_576)
    assert all(0 < done <= total for done, total in told)

    def stop(done: int, total: int) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        verify_audit(path, on_progress=stop)
