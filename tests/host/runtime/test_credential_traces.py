"""What a host keeps and tells of requests with credentials: never a value."""

from __future__ import annotations

import json
import logging
import secrets
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from typer.testing import CliRunner

from toolcell.guard import verify_audit
from toolcell.host import Host, HostConfig
from toolcell.host.cli.commands import make_app
from toolcell.sandbox.credentials.masking import spellings
from toolcell.sandbox.network.name_resolution import NameResolver

from ...support.cells.memory import found_below
from ...support.cells.mirror import mirroring
from ...support.cells.web_server import NAME, resolve_here, self_signed

pytestmark = [pytest.mark.anyio, pytest.mark.promise("boundary-6")]

VALUE = secrets.token_hex(20)
CONFIG = """
[tools]
builtin = ["code"]
[state]
folder = "state"
[audit]
path = "audit.jsonl"
[sandbox]
backend = "subprocess"
[sandbox.network]
mode = "guarded"
hosts = {hosts}
inspect = ["{host}"]
server_ca = "{certificate}"
[[sandbox.credentials]]
name = "api"
value = "file:{token}"
hosts = ["{host}"]
agents = ["a"]
variable = "API_TOKEN"
where = ["header:Authorization", "query:key"]
[[policies]]
agent_id = "a"
allow = ["run_python", "http.request"]
deny = [{{ tools = ["http.request"], when = {{ path = {{ equals = "/denied" }} }} }}]
"""
SEND = """
import os, urllib.error, urllib.request
token = os.environ["API_TOKEN"]
def send(path, **headers):
    request = urllib.request.Request("https://{host}" + path, None, headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return [answer.status, answer.read().decode()]
    except urllib.error.HTTPError as error:
        return [error.code, error.headers["X-Toolcell-Refusal"]]
bearer = {{"Authorization": "Bearer " + token}}
"""
USE = """
print(token)
print(send("/plain", **bearer), send("/hex?key=" + token), send("/gzip", **bearer))
[send("/denied", **bearer), send("/" + token), send("/", Cookie=token)]
"""
REFUSED = ["credential_misplaced"] * 2 + ["credential_unreadable", "denied"]


async def run(opened: Host, host: str, code: str) -> Any:
    arguments = {"code": SEND.format(host=host) + code}
    return await opened.call("run_python", arguments, agent_id="a")


async def test_no_record_log_span_or_file_has_a_value(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    spans: InMemorySpanExporter,
    metric_reader: InMemoryMetricReader,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(NameResolver, "of_run", lambda *_: resolve_here)
    certificate = self_signed(tmp_path)
    token, folder = tmp_path / "token", tmp_path / "host"
    token.write_text(VALUE)
    folder.mkdir()
    with mirroring(certificate, VALUE) as mirror:
        host = f"{NAME}:{mirror.port}"
        hosts = json.dumps([host, f"127.0.0.1:{mirror.port}"])
        names = {"host": host, "hosts": hosts, "certificate": certificate}
        path = folder / "toolcell.toml"
        path.write_text(CONFIG.format(**names, token=token))
        async with Host(HostConfig.from_file(path)) as opened:
            result = await run(opened, host, USE)
            token.write_text("broken")
            after = await run(opened, host, 'send("/plain", **bearer)')
            records = opened.executor.records.query(tool_name="http.request")
            shown = repr((result, after, records))
    content = result.content
    assert "value" in content, content
    assert after.content["value"] == [403, "credential_unreadable"]
    assert content["value"] == [
        [403, "denied"],
        [403, "credential_misplaced"],
        [403, "credential_misplaced"],
    ]

    texts = [each.encode() for each in (shown, caplog.text)]
    texts += [span.to_json().encode() for span in spans.get_finished_spans()]
    texts.append(str(metric_reader.get_metrics_data()).encode())
    for spelling in spellings(VALUE):
        assert not any(spelling in text for text in texts)
    placeholder = content["stdout"].split()[0].encode()
    assert found_below(folder, spellings(VALUE)) == set()
    command = ["credentials", "list", "--json", "--config", str(path)]
    listed = CliRunner().invoke(make_app(["credentials"]), command).stdout
    last = max(record.started_at for record in records if "used" in str(record.result))
    assert json.loads(listed)[0]["last_use"] == last.isoformat(timespec="seconds")
    assert "audit.jsonl" in found_below(folder, [placeholder])
    reasons = [record.reason for record in records if record.status == "denied"]
    assert sorted(map(str, reasons)) == REFUSED
    used = [record.result for record in records if record.status == "ok"]
    assert [each["used"] for each in used if isinstance(each, dict)] == [["api"]] * 2
    log = (folder / "audit.jsonl").read_text()
    told = metric_reader.get_metrics_data()
    counted = str(told and told.to_json())
    for reason in REFUSED:
        assert log.count(f'"{reason}"') == REFUSED.count(reason)
        assert f'"toolcell.reason": "{reason}"' in counted
    verify_audit(folder / "audit.jsonl")
