"""Runs are asked for by filters, which links keep, and are exported as they fit."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from toolcell.tools import ToolExecutionRecord

from ....support.console.client import Client
from ....support.console.served import SECRET, Service, served

pytestmark = pytest.mark.promise("D9")
NOW = datetime.now(UTC)
FORMULA = '=HYPERLINK("https://evil.test")'


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with served(tmp_path_factory.mktemp("console")) as made:
        for number in range(120):
            add(made, number, NOW - timedelta(days=number // 40))
        add(made, 120, NOW, agent_id=FORMULA, result={"status": "out_of_memory"})
        made.call("note", text=f"the token is {SECRET}, quietly").result(60)
        made.call("note", agent="stranger", text="refused").result(60)
        yield made


def add(service: Service, number: int, at: datetime, **changes: object) -> None:
    status = "error" if number % 40 == 3 else "ok"
    fields = {
        "call_id": f"c{number}",
        "tool_name": "run_python",
        "agent_id": "coder",
        "parent_id": None,
        "tool_version": "1",
        "arguments": {"code": f"\nmake(chart_{number})"},
        "verdict": "allowed",
        "status": status,
        "started_at": at,
        "duration_ms": 30_050.0,
    }
    service.host.executor.records.add(ToolExecutionRecord(**{**fields, **changes}))  # type: ignore[arg-type]


def test_agents_count_programs_that_failed(viewer: Client) -> None:
    row = viewer.page("/agents").split("HYPERLINK")[1].split("coder")[0]

    # What runs, calls, refused, failed, money.
    assert "0 1 0 1 0 USD" in row


def test_what_failed_is_found(viewer: Client) -> None:
    failed = viewer.page("/runs?status=failed")
    assert failed.count("30.1 s") == 4
    assert "Now" not in failed, "what runs now fits no filter"
    assert "Now" in viewer.page("/runs")
    assert "make(chart_43)" in failed
    assert viewer.page("/runs?status=failed&since=today").count("30.1 s") == 2
    memory = viewer.page("/runs?status=out_of_memory")
    assert memory.count("30.1 s") == 1
    assert "make(chart_7)" in viewer.page("/runs?text=chart_7")
    assert f"{NOW - timedelta(days=1):%A, %Y-%m-%d}" in viewer.page("/runs?until=today")


def test_links_keep_filters_and_pages_follow(viewer: Client) -> None:
    first = viewer.page("/runs?agent=coder&text=make")
    [older] = [link for link in viewer.links if "before=" in link]
    second = viewer.page(older)

    assert "agent=coder" in older
    assert "text=make" in older
    assert first.count("make(chart_") == second.count("make(chart_") == 50
    assert "make(chart_119)" not in second


def test_a_broken_filter_is_told_and_the_rest_stands(viewer: Client) -> None:
    page = viewer.page("/runs?status=broken&since=noon&text=chart_7")

    assert "The filter status was left out: 'broken' is no status" in page
    assert "The filter since was left out: 'noon' is no time" in page
    assert page.count("30.1 s") == 1
    viewer.page("/runs/export?since=noon", 409)
    viewer.page("/runs/export?form=xml", 404)


def test_secrets_are_not_found(viewer: Client) -> None:
    assert "note" in viewer.page("/runs?text=quietly")
    assert "No record fits" in viewer.page(f"/runs?text={SECRET}")


def test_all_that_fit_are_exported(viewer: Client) -> None:
    lines = [*viewer.lines("/runs/export?agent=coder&form=jsonl")]
    rows = "\n".join(viewer.lines("/runs/export?form=csv"))
    table = [*csv.DictReader(io.StringIO(rows))]
    numbers = [json.loads(line)["number"] for line in lines]

    assert numbers == list(range(120, 0, -1))
    assert len(table) == 123
    assert table[2]["agent_id"] == f"'{FORMULA}"
    assert table[2]["outcome"] == "out_of_memory"
    assert json.loads(table[3]["arguments"]) == {"code": "\nmake(chart_119)"}


@pytest.mark.promise("D7")
def test_the_audit_log_is_asked_by_the_same_filters(viewer: Client) -> None:
    assert "outcome" in viewer.page("/audit?tool=note&status=ok")
    assert "decision" in viewer.page("/audit?agent=stranger&status=denied")
    assert "No record fits" in viewer.page("/audit?agent=builder&status=denied")
    assert "outcome" in viewer.page("/audit?text=note")
    assert "No record fits" in viewer.page(f"/audit?text={SECRET}")
    page = viewer.page("/audit?until=noon&agent=nobody")
    assert "The filter until was left out" in page
    assert "No record fits" in page


@pytest.mark.promise("D7")
def test_the_audit_log_is_exported(
    service: Service, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcell.host.operator.exports.PAGE_RECORDS", 2)
    service.call("note", agent=FORMULA, text="refused").result(60)
    asked = viewer.lines("/audit/export?agent=stranger&form=jsonl")
    lines = [json.loads(each) for each in asked]
    rows = "\n".join(viewer.lines("/audit/export?form=csv"))
    table = [*csv.DictReader(io.StringIO(rows))]
    numbers = [int(each["seq"]) for each in table]

    assert {line["agent_id"] for line in lines} == {"stranger"}
    assert len(numbers) > 2
    assert numbers == sorted({*numbers}, reverse=True)
    assert numbers[0] - numbers[-1] == len(numbers) - 1
    assert all(json.loads(each["record"])["seq"] == int(each["seq"]) for each in table)
    assert f"'{FORMULA}" in {each["agent_id"] for each in table}
    middle = table[len(table) // 2]["time"]
    for bound, expected in (
        ("since", [each for each in table if each["time"] >= middle]),
        ("until", [each for each in table if each["time"] < middle]),
    ):
        found = viewer.lines(f"/audit/export?form=jsonl&{bound}={middle}")
        assert [json.loads(each)["seq"] for each in found] == [
            int(each["seq"]) for each in expected
        ]
        assert 0 < len(expected) < len(table)
    viewer.page("/audit/export?until=noon", 409)
    viewer.page("/audit/export?form=xml", 404)
