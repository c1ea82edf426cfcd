"""Exports of the audit log have its records, and no line that is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolcell.guard import AuditLog
from toolcell.host.operator.exports import export_audit

pytestmark = pytest.mark.anyio


@pytest.mark.promise("D7")
@pytest.mark.parametrize("form", ["jsonl", "csv"])
async def test_a_line_that_is_no_record_is_left_out(tmp_path: Path, form: str) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as log:
        log.append("note", number=1)
        log.append("note", number=2)
    with path.open("ab") as file:
        file.write(b"no record\n")
    exported = b"".join([part async for part in export_audit(path, {}, form)])
    lines = exported.decode().splitlines()

    if form == "jsonl":
        assert [json.loads(line)["seq"] for line in lines] == [2, 1]
    else:
        assert [line.partition(",")[0] for line in lines] == ["seq", "2", "1"]
