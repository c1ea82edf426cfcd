"""What a host tells of itself: spans, metrics and logs, and no secrets in them."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from toolcell.core import ConfigError
from toolcell.host import Host, HostConfig
from toolcell.tools import RunContext

from ...support.toolcell_command import toolcell

pytestmark = pytest.mark.anyio

CANARY = "canary-canary-7f31"
SUM = {"expression": "6 * 7"}
PROGRAM = {"code": "tools.calculate(expression='6 * 7')"}


def config(**tables: Any) -> HostConfig:
    return HostConfig.model_validate(
        {
            "sandbox": {"backend": "subprocess"},
            "tools": {"builtin": ["arithmetic", "code"]},
            "policies": [
                {
                    "agent_id": "a",
                    "allow": ["calculate", "run_python"],
                    "budgets": [{"unit": "usd", "limit": "2.50", "window": "day"}],
                },
                {"agent_id": "b", "allow": ["calculate"], "rate_limits": ["1/hour"]},
            ],
            **tables,
        }
    )


def read(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    """Return the points of each metric."""
    data = reader.get_metrics_data()
    found: dict[str, list[Any]] = {}
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                found[metric.name] = list(metric.data.data_points)
    return found


def value(points: list[Any], **labels: str) -> float:
    """Return the sum of the points with these labels; `_` stands for a dot."""
    wanted = {
        "gen_ai.agent.id": labels.get("agent"),
        "gen_ai.tool.name": labels.get("tool"),
        "toolcell.status": labels.get("status"),
        "toolcell.reason": labels.get("reason"),
        "toolcell.limit": labels.get("limit"),
    }
    given = {name: label for name, label in wanted.items() if label is not None}
    return sum(
        getattr(point, "value", getattr(point, "count", 0))
        for point in points
        if given.items() <= dict(point.attributes).items()
    )


@pytest.mark.promise("JC1")
async def test_calls_and_refusals_are_counted(
    metric_reader: InMemoryMetricReader,
) -> None:
    before = read(metric_reader)
    async with Host(config(), environ={}) as host:
        for agent in ("a", "b", "b"):
            await host.call("calculate", SUM, agent_id=agent)
        await host.call("calculate", {"expression": "1/0"}, agent_id="a")
        await host.call("run_python", PROGRAM, agent_id="a")
    after = read(metric_reader)

    def grown(name: str, **labels: str) -> float:
        return value(after[name], **labels) - value(before.get(name, []), **labels)

    # One of them was made by the program.
    assert grown("toolcell.calls", agent="a", tool="calculate", status="ok") == 2
    assert grown("toolcell.calls", agent="a", tool="calculate", status="error") == 1
    assert grown("toolcell.calls", agent="b", status="denied") == 1
    assert grown("toolcell.denials", agent="b", reason="rate_limited") == 1
    assert grown("toolcell.denials", agent="a") == 0
    assert grown("toolcell.call.duration", tool="calculate") == 5
    # Nearly all calls are shorter than a second.
    bounds = after["toolcell.call.duration"][0].explicit_bounds
    assert len([bound for bound in bounds if bound < 1]) > 5


async def test_names_that_nobody_registered_make_no_series(
    metric_reader: InMemoryMetricReader,
) -> None:
    async with Host(config(), environ={}) as host:
        for number in range(20):
            await host.call(f"made_up_{number}", agent_id=f"nobody_{number}")
    points = read(metric_reader)["toolcell.calls"]

    assert value(points, tool="unknown", agent="unknown", status="error") >= 20
    assert not [point for point in points if "made_up" in str(point.attributes)]
    assert not [point for point in points if "nobody" in str(point.attributes)]


async def test_cells_and_limits_are_shown_while_a_host_is_open(
    metric_reader: InMemoryMetricReader,
) -> None:
    names = ("cells.active", "queue.length", "pool.ready", "sessions.open")

    def gauges() -> list[float]:
        points = read(metric_reader)
        return [value(points[f"toolcell.{name}"]) for name in names]

    quick = config(telemetry={"budget_seconds": 0.01})
    closed = gauges()
    async with Host(quick, environ={}) as host:
        run = RunContext(session="s")
        await host.call("run_python", PROGRAM, agent_id="a", run=run)
        opened = gauges()
        with anyio.fail_after(60):
            while not (left := read(metric_reader).get("toolcell.budget.left")):
                await anyio.sleep(0.01)
    after = gauges()

    assert (closed, opened, after) == ([0] * 4, [1, 0, 0, 1], [0] * 4)
    assert value(left, agent="a", limit="a usd/day") == 2.5
    assert value(left, agent="b") == 1


async def test_the_queue_and_the_pool_are_shown(
    metric_reader: InMemoryMetricReader,
) -> None:
    def gauge(name: str) -> float:
        return value(read(metric_reader)[f"toolcell.{name}"])

    small = config(
        sandbox={"backend": "subprocess", "max_concurrency": 2, "pool": 1},
        tools={"builtin": ["code"], "max_sessions": 1},
    )
    async with Host(small, environ={}) as host, anyio.create_task_group() as tasks:
        assert host.sandbox is not None
        with anyio.fail_after(60):
            while gauge("pool.ready") != 1:
                await anyio.sleep(0.01)
            async with host.sandbox.session(), host.sandbox.session():
                assert gauge("queue.length") == 0
                tasks.start_soon(host.sandbox.run, "1")
                while gauge("queue.length") != 1:
                    await anyio.sleep(0.01)
                assert gauge("cells.active") == 2


async def test_a_programs_calls_are_inside_its_span(
    spans: InMemorySpanExporter,
) -> None:
    async with Host(config(), environ={}) as host:
        await host.call("run_python", PROGRAM, agent_id="a")
    by_name = {span.name: span for span in spans.get_finished_spans()}
    outer = by_name["execute_tool run_python"]
    inner = by_name["execute_tool calculate"]

    assert inner.parent is not None
    assert outer.context is not None
    assert inner.parent.span_id == outer.context.span_id


@pytest.mark.promise("E-108")
async def test_logs_have_ids_and_no_secrets(
    tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    path = tmp_path / "toolcell.log"
    logged = config(
        logging={"format": "json", "path": str(path)},
        audit={"path": str(tmp_path / "audit.jsonl"), "key": "env:KEY"},
    )
    async with Host(logged, environ={"KEY": CANARY}) as host:
        await host.call("calculate", SUM, agent_id="a", call_id="one")
        await host.call(CANARY, {"password": CANARY}, agent_id="a", call_id=CANARY)
        code = {"code": f"print({CANARY!r})\nraise ValueError({CANARY!r})"}
        await host.call("run_python", code, agent_id="a")
        try:
            raise OSError(CANARY)
        except OSError:
            logging.getLogger("toolcell.x").exception("a fault at %s", CANARY)
    text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()]

    assert CANARY not in text
    first, missing, program, fault = lines
    assert first["message"] == "call of calculate: ok"
    assert (first["call_id"], first["agent_id"]) == ("one", "a")
    assert (first["level"], missing["level"]) == ("info", "warning")
    assert missing["error_kind"] == "tool.not_found"
    assert program["backend"] == "subprocess"
    assert "OSError" in fault["exception"]
    [span] = [
        span
        for span in spans.get_finished_spans()
        if span.context and f"{span.context.span_id:016x}" == first["span_id"]
    ]
    assert span.name == "execute_tool calculate"


@pytest.mark.promise("E-78")
async def test_what_a_model_writes_begins_no_line_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "toolcell.log"
    logged = config(logging={"format": "text", "path": str(path)})
    async with Host(logged, environ={}) as host:
        await host.call("x\n2026 INFO forged\x1b[2J", agent_id="a")
    text = path.read_text()

    assert text.count("\n") == 1
    assert "\x1b" not in text


async def test_a_log_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "toolcell.log"
    logged = config(logging={"format": "json", "path": str(path)})
    async with Host(logged, environ={}) as host:
        await host.call("calculate", SUM, agent_id="a")
        path.rename(tmp_path / "old.log")
        await host.call("calculate", SUM, agent_id="a")

    assert len(path.read_text().splitlines()) == 1


async def test_logging_is_left_alone_unless_asked_for(tmp_path: Path) -> None:
    logger = logging.getLogger("toolcell")
    before = (logger.level, logger.propagate, list(logger.handlers))
    async with Host(config(), environ={}):
        assert (logger.level, logger.propagate, logger.handlers) == before
    async with Host(config(logging={"format": "json"}), environ={}):
        assert len(logger.handlers) == len(before[2]) + 1
    assert (logger.level, logger.propagate, logger.handlers) == before

    nowhere = config(logging={"format": "text", "path": str(tmp_path / "no" / "log")})
    with pytest.raises(ConfigError, match="cannot be opened"):
        async with Host(nowhere, environ={}):
            pass


@contextmanager
def collector() -> Iterator[tuple[str, list[str]]]:
    """A server that takes what OTLP exporters send; yields its address and paths."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            named = b"service.name\x12\n\n\x08toolcell" in body
            paths.append(f"{self.path} {named}")
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", paths
        server.shutdown()
        thread.join()


@pytest.mark.promise("JM2")
def test_a_command_sends_what_it_measures(tmp_path: Path) -> None:
    path = tmp_path / "toolcell.toml"
    path.write_text(
        '[tools]\nbuiltin = ["arithmetic"]\n[telemetry]\nexporter = "otlp"\n'
        '[[policies]]\nagent_id = "a"\nallow = ["*"]\n'
    )
    with collector() as (address, paths):
        environ = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": address}
        arguments = ("--agent", "a", "--args", json.dumps(SUM), "--config", str(path))
        done = toolcell("call", "calculate", *arguments, env=environ)

    assert (done.returncode, done.stdout) == (0, b"42\n"), done.stderr
    assert {"/v1/traces True", "/v1/metrics True"} <= set(paths)


async def test_an_sdk_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
    with pytest.raises(ConfigError, match=r"the OpenTelemetry SDK.*telemetry"):
        async with Host(config(telemetry={"exporter": "otlp"}), environ={}):
            pass
