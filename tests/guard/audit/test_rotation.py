"""A log that goes on in a new file: the chain goes through, whoever dies or writes."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import ConfigError, InvalidInputError
from toolcell.guard import AuditHead, AuditLog, audit_parts, verify_audit

from ...support.child import Child
from ...support.guard.patience import PATIENT

SMALLEST = 4_096


def log_of(folder: Path, **options: Any) -> AuditLog:
    return AuditLog(folder / "audit.jsonl", rotate_bytes=SMALLEST, **options)


def fill(log: AuditLog, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        log.append("note", number=number, text="x" * 50)


def records(path: Path) -> list[dict[str, Any]]:
    with audit_parts(path) as parts:
        return [json.loads(line) for part in parts for line in part.file]


def numbers(path: Path) -> list[int]:
    return [record["number"] for record in records(path) if record["event"] == "note"]


def events(path: Path) -> set[str]:
    return {record["event"] for record in records(path)}


def rotated(folder: Path) -> list[Path]:
    return sorted(folder.glob("audit.jsonl.0*"))


@pytest.mark.parametrize("key", [None, b"0123456789abcdef"], ids=["plain", "keyed"])
def test_the_chain_goes_through_the_files(tmp_path: Path, key: bytes | None) -> None:
    path = tmp_path / "audit.jsonl"
    heads = []
    with log_of(tmp_path, key=key) as log:
        for number in range(100):
            fill(log, 1, number)
            heads.append(log.head())

    assert numbers(path) == list(range(100))
    assert len(rotated(tmp_path)) > 3
    assert all(each.stat().st_mode & 0o777 == 0o600 for each in rotated(tmp_path))
    for file in rotated(tmp_path):
        last = json.loads(file.read_bytes().splitlines()[-1])
        assert last["event"] == "rotated"
        assert file.name == f"audit.jsonl.{last['seq']:015d}"
        assert file.stat().st_size < SMALLEST + 1_024
    report = verify_audit(path, anchors=heads, key=key)
    assert report.ok
    assert report.head == heads[-1]
    assert report.anchored == ((1, heads[-1].seq),)


def test_damage_in_any_file_is_found(tmp_path: Path) -> None:
    with log_of(tmp_path) as log:
        fill(log, 100)
    _, second, third, *_ = rotated(tmp_path)

    whole = second.read_bytes()
    second.write_bytes(whole.replace(b'"text":"x', b'"text":"y', 1))
    [problem] = verify_audit(tmp_path / "audit.jsonl").problems
    assert (problem.kind, problem.file) == ("edited", second.name)
    assert str(problem).startswith(f"{second.name}: line 1: edited")

    second.unlink()
    [problem] = verify_audit(tmp_path / "audit.jsonl").problems
    assert (problem.kind, problem.file, problem.line) == ("gap", third.name, 1)


def test_a_first_file_that_is_gone_is_a_gap_unless_its_head_was_stored(
    tmp_path: Path,
) -> None:
    path = tmp_path / "audit.jsonl"
    with log_of(tmp_path) as log:
        fill(log, 100)
    first = rotated(tmp_path)[0]
    last = json.loads(first.read_bytes().splitlines()[-1])
    first.unlink()

    [problem] = verify_audit(path).problems
    assert (problem.kind, problem.detail) == (
        "gap",
        f"records 1-{last['seq']} are missing",
    )
    head = AuditHead(last["seq"], last["hash"])
    assert verify_audit(path, anchors=[head, AuditHead(1, "0" * 64)]).ok
    forged = AuditHead(last["seq"], "0" * 64)
    assert not verify_audit(path, anchors=[forged]).ok


def test_old_files_are_deleted_and_a_record_says_so(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with log_of(tmp_path, keep_files=2) as log:
        first = log.append("note", number=-1)
        fill(log, 200)
        head = log.head()

    assert len(rotated(tmp_path)) == 2
    assert numbers(path)[-1] == 199
    assert numbers(path)[0] > 100
    assert {"rotated", "pruned"} <= events(path)
    assert verify_audit(path, anchors=[first, head]).ok

    rotated(tmp_path)[0].unlink()
    assert [problem.kind for problem in verify_audit(path).problems] == ["gap"]


def test_what_a_call_says_is_no_rotation(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as log, AuditLog(path) as other:
        log.append("note", arguments={"x": 1, "event": "rotated", "file": "audit"})
        other.append("note", number=1)

    assert not rotated(tmp_path)
    assert verify_audit(path).ok


WRITER = """
import os, sys
from toolcell.guard import AuditLog
name, count, die_at = sys.argv[2], int(sys.argv[3]), sys.argv[4]
if die_at:
    die = lambda *args, **options: os._exit(9)
    if die_at == "write":
        from toolcell.guard.audit import file
        file._open_locked, make = (
            lambda path: (make(path), setattr(os, "write", die))[0],
            file._open_locked,
        )
    else:
        setattr(os, die_at, die)
with AuditLog(sys.argv[1], rotate_bytes=4096) as log:
    print("ready", flush=True)
    for number in range(count):
        log.append("note", by=name, number=number, text="x" * 50)
"""


def writer(path: Path, name: str, count: int, die_at: str = "") -> Any:
    return Child(
        [sys.executable, "-c", PATIENT + WRITER, path, name, str(count), die_at],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_processes_that_write_at_once_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    writers = [writer(path, name, 300) for name in ("a", "b", "c")]
    for process in writers:
        process.communicate(timeout=60)

    assert [each.returncode for each in writers] == [0, 0, 0]
    notes = [record for record in records(path) if record["event"] == "note"]
    for name in ("a", "b", "c"):
        assert [note["number"] for note in notes if note["by"] == name] == list(
            range(300)
        )
    assert len(rotated(tmp_path)) > 10
    assert verify_audit(path).ok


@pytest.mark.parametrize("die_at", ["link", "write", "fsync", "rename"])
def test_a_writer_that_dies_while_it_rotates_loses_nothing(
    tmp_path: Path, die_at: str
) -> None:
    path = tmp_path / "audit.jsonl"
    with log_of(tmp_path) as other:
        fill(other, 5)
        dying = writer(path, "d", 100, die_at)
        dying.communicate(timeout=60)
        assert dying.returncode == 9
        left = numbers(path)
        fill(other, 5, 1_000)
        assert verify_audit(path).ok
    with log_of(tmp_path) as log:
        fill(log, 100, 2_000)

    assert len(left) > 10
    assert numbers(path) == [*left, *range(1_000, 1_005), *range(2_000, 2_100)]
    assert verify_audit(path).ok
    assert len(rotated(tmp_path)) > 3


def test_a_log_that_cannot_be_rotated_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    path = tmp_path / "audit.jsonl"
    monkeypatch.setattr(os, "link", refused)
    with caplog.at_level(logging.WARNING), log_of(tmp_path) as log:
        fill(log, 100)
        assert numbers(path) == list(range(100))
        monkeypatch.undo()
        fill(log, 100, 100)

    assert "cannot be rotated" in caplog.text
    assert len(caplog.records) < 10
    assert numbers(path) == list(range(200))
    assert rotated(tmp_path)
    assert verify_audit(path).ok


def test_a_start_after_the_new_file_was_made_goes_on_with_the_chain(
    tmp_path: Path,
) -> None:
    path = tmp_path / "audit.jsonl"
    with log_of(tmp_path) as log:
        while not rotated(tmp_path):
            fill(log, 1)
        assert not path.read_bytes()
        before = log.head()
    with log_of(tmp_path) as log:
        assert log.append("note").seq == before.seq + 1

    assert verify_audit(path, anchors=[before]).ok


def test_bad_use_is_refused(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [
        {"rotate_bytes": 4_095},
        {"rotate_bytes": 0},
        {"keep_files": 0},
    ]
    for options in wrong:
        with pytest.raises(ConfigError):
            AuditLog(tmp_path / "audit.jsonl", **options)
    with log_of(tmp_path) as log:
        for event in ("rotated", "pruned", "repaired"):
            with pytest.raises(InvalidInputError):
                log.append(event)
