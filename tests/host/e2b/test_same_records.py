"""Calls of tools, actions of clients and calls of providers leave the same traces."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from toolcell.core import GuardDeniedError, ToolCall
from toolcell.providers.cells.guarded_session import GuardedSession
from toolcell.sandbox import Session
from toolcell.tools import ToolExecutionRecord

from .served_sandboxes import Service, served, written

pytestmark = pytest.mark.anyio

TOOLS = ("run_shell", "sandbox.command", "exec")
RULES = """
[[policies]]
agent_id = "a"
[[policies.allow]]
tools = ["sandbox.create"]
[[policies.allow]]
tools = ["run_shell", "sandbox.command", "exec"]
when = { command = { matches = "echo .*" } }
[audit]
path = "audit.jsonl"
[tools]
builtin = ["run_shell"]
"""


async def call_all(service: Service, command: str) -> None:
    host = service.host
    assert host.sandbox is not None
    call = ToolCall(
        id="c", name="run_shell", arguments={"command": command}, agent_id="a"
    )
    await host.executor.call(call)
    sandbox = await service.create()
    config = {"cmd": "/bin/bash", "args": ["-l", "-c", command]}
    await sandbox.events("process.Process/Start", process=config, stdin=False)
    async with host.sandbox.session() as session:
        assert isinstance(session, Session)
        records = host.executor.records
        guarded = GuardedSession(
            session, guard=host.guard, agent_id="a", records=records
        )
        try:
            await guarded.exec(command)
        except GuardDeniedError:
            assert "echo" not in command


def shape(record: ToolExecutionRecord) -> dict[str, Any]:
    """Return what is the same whoever made a record."""
    facts = {name: type(value) for name, value in record._asdict().items()}
    same = ("agent_id", "verdict", "status", "error_kind", "reason", "rule", "backend")
    facts |= {name: getattr(record, name) for name in same}
    del facts["parent_id"], facts["result"]
    return {**facts, "usage": sorted(record.usage)}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    own = ("gen_ai.tool.name", "gen_ai.tool.call.id")
    return {k: v for k, v in (span.attributes or {}).items() if k not in own}


def counted(reader: InMemoryMetricReader) -> dict[str, set[tuple[Any, ...]]]:
    """Return the points of each tool's metrics, without its name."""
    data = reader.get_metrics_data()
    points = [
        (metric.name, {**(point.attributes or {})}, point)
        for each in (data.resource_metrics if data else ())
        for scope in each.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    ]
    found = defaultdict[str, set[tuple[Any, ...]]](set)
    for name, labels, point in points:
        tool = str(labels.pop("gen_ai.tool.name", ""))
        total = getattr(point, "count", None) or getattr(point, "value", None)
        found[tool].add((name, *sorted(labels.items()), total))
    return found


@pytest.mark.parametrize("command", ["echo hello", "rm -r /"])
async def test_records_spans_metrics_and_log_are_the_same(
    command: str,
    tmp_path: Path,
    spans: InMemorySpanExporter,
    metric_reader: InMemoryMetricReader,
) -> None:
    before = counted(metric_reader)
    async with served(tmp_path, policies=RULES) as service:
        await call_all(service, command)
        await written(service, 4)
        records = {
            record.tool_name: record
            for record in service.host.executor.records.all_records()
        }
    found = {
        str((span.attributes or {})["gen_ai.tool.name"]): span
        for span in spans.get_finished_spans()
        if span.name.startswith("execute_tool")
    }
    lines = (tmp_path / "audit.jsonl").read_text().splitlines()
    log = [json.loads(line) for line in lines]

    tool, action, provider = (shape(records[name]) for name in TOOLS)
    assert tool == action == provider
    tool, action, provider = (attributes(found[name]) for name in TOOLS)
    assert tool == action == provider
    after = counted(metric_reader)
    metrics = [{point[:-1] for point in after[n] - before[n]} for n in TOOLS]
    assert metrics[0] and metrics == [metrics[0]] * 3
    events = [
        [(e["event"], sorted({*e} - {"caller"})) for e in log if e.get("tool") == name]
        for name in TOOLS
    ]
    assert events[0] and events == [events[0]] * 3
