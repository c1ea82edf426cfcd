"""The first pages of lists take 100 ms, with a million records behind them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from toolcell.guard.audit.chain import AuditHead, Sealer
from toolcell.tools import SQLiteRecords, ToolExecutionRecord

from ....support.console.person import Client
from ....support.console.served import Service, served

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]
MADE, COUNT = 128, 2**20
SECONDS = 0.1
_COPIES = f"""
CREATE TEMP TABLE copies AS
    WITH RECURSIVE counted(n) AS
        (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < {COUNT // MADE - 1})
    SELECT n FROM counted;
INSERT INTO tool_records SELECT number + n * {MADE}, lower(hex(randomblob(16))),
    parent_id, agent_id, tool_name, status, started_at, body
    FROM copies CROSS JOIN tool_records;
INSERT INTO tool_search (rowid, facts, words)
    SELECT tool_search.rowid + n * {MADE}, facts, words
    FROM copies CROSS JOIN tool_search;
"""


def fill_records(path: Path) -> None:
    """Make a file of a million records, all but the first few copies."""
    with closing(SQLiteRecords(path)) as store:
        for number in range(MADE):
            store.add(
                ToolExecutionRecord(
                    call_id=f"c{number}",
                    tool_name=f"tool{number % 8}",
                    agent_id=f"agent{number % 100}",
                    parent_id=None,
                    tool_version="1",
                    arguments={"text": "words that are searched", "number": number},
                    verdict="allowed",
                    status="error" if number % 16 == 0 else "ok",
                    started_at=datetime.now(UTC) - timedelta(hours=1),
                    duration_ms=1.0,
                )
            )
    with closing(sqlite3.connect(path)) as file, file:
        file.executescript(_COPIES)


def fill_log(path: Path) -> None:
    """Make a log of a million records."""
    sealer, digest = Sealer(None), "0" * 64
    facts = (
        f'"time":"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}","event":"decision",'
        '"agent_id":"agent1","tool":"tool1","verdict":"allow"'
    )
    with path.open("wb") as file:
        for number in range(COUNT):
            line, digest = sealer.seal(AuditHead(number, digest), facts)
            file.write(line)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("full")
    (folder / "state").mkdir(mode=0o700)
    fill_records(folder / "state/records.db")
    fill_log(folder / "audit.jsonl")
    with served(folder, "") as made:
        yield made


@pytest.mark.parametrize(
    "page",
    [
        "/runs",
        "/runs?agent=agent7&tool=tool7",
        "/runs?status=failed",
        "/runs?text=searched",
        "/runs?since=1d",
        "/audit",
        "/audit?agent=agent1",
    ],
)
def test_the_first_page_of_a_million_comes_at_once(service: Service, page: str) -> None:
    viewer = Client(service, "viewer")
    taken = []
    for _ in range(7):
        begun = time.perf_counter()
        answer = viewer.get(page)
        taken.append(time.perf_counter() - begun)
        assert answer.status_code == 200
        assert "<tr" in answer.text

    print(f"{page}: {min(taken) * 1_000:.0f} ms")
    assert min(taken) <= SECONDS
