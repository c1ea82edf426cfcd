"""A check of the audit log in the background, against heads that people kept."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from toolcell.core import StoreUnavailableError
from toolcell.guard import AuditHead, AuditLog
from toolcell.host.operator import actions, audit_anchors
from toolcell.host.operator.audit_anchors import HeadFile
from toolcell.host.operator.audit_check import AuditCheck

pytestmark = pytest.mark.anyio


def finished(check: AuditCheck) -> AuditCheck:
    assert check._thread is not None
    check._thread.join(60)
    return check


def test_a_check_finds_what_was_cut_off_after_a_kept_head(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path, key=b"k" * 16) as log:
        for number in range(5):
            log.append("note", number=number)
        head = log.head()
    check = AuditCheck(log)
    assert check.state.state == "none"
    assert check.start([head])
    state = finished(check).state
    assert (state.state, state.anchors) == ("done", 1)
    assert state.report is not None
    assert state.report.ok

    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    assert check.start([head])
    report = finished(check).state.report
    assert report is not None
    assert [problem.kind for problem in report.problems] == ["truncated"]

    path.unlink()
    assert check.start()
    assert finished(check).state.state == "failed"
    assert "cannot be read" in check.state.error


def test_one_check_runs_at_a_time_tells_its_place_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as log:
        for _ in range(600):
            log.append("note", text="x" * 4_000)
    check, far, go = AuditCheck(log), threading.Event(), threading.Event()
    note = check._note

    def slow(checked: int, total: int) -> None:
        note(checked, total)
        far.set()
        assert go.wait(60)

    monkeypatch.setattr(check, "_note", slow)
    assert check.start()
    assert far.wait(60)
    assert not check.start()
    state = check.state
    assert (state.state, state.total) == ("running", path.stat().st_size)
    assert 0 < state.checked < state.total
    check._stopped.set()
    go.set()
    check.close()

    assert (check.state.state, check.state.report) == ("failed", None)


async def test_a_head_is_kept_under_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "heads.db"
    with AuditLog(tmp_path / "audit.jsonl") as log, HeadFile(path) as file:
        kept = await actions.keep_head(log, file, by="Ann")
        assert kept.head == log.head()
        assert kept.head.seq == 1
        with HeadFile(path) as other:
            assert other.all() == [kept]
        monkeypatch.setattr(audit_anchors, "MAX_HEADS", 2)
        for number in range(3):
            file.keep(AuditHead(number, "0" * 64), by="Bob")
        assert [each.head.seq for each in file.all()] == [2, 1]
        path.unlink()
        with pytest.raises(StoreUnavailableError):
            file.all()
