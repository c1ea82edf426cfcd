"""`telemetry.metrics_address`: what Prometheus reads of a server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import httpx2
import pytest

from toolcell.core import ConfigError
from toolcell.host import HostConfig
from toolcell.host.http.metrics import serve_metrics

from ...support.mcp.served_hosts import (
    CONFIG,
    SUM,
    http_client,
    http_process,
    make_token,
    written,
)
from ...support.web.ports import free_port

pytestmark = pytest.mark.anyio


async def test_prometheus_reads_the_metrics_of_a_server(tmp_path: Path) -> None:
    port = free_port()
    text = f"{CONFIG}[telemetry]\nmetrics_address = '127.0.0.1:{port}'\n"
    token = make_token(tmp_path)
    with http_process(written(tmp_path, text)) as (url, _):
        async with http_client(url, token) as client:
            await client.call_tool("calculate", SUM)
        answer = httpx2.get(f"http://127.0.0.1:{port}/metrics", timeout=60)

    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    lines = answer.text.splitlines()
    [calls] = [line for line in lines if line.startswith("toolcell_calls_total{")]
    assert 'gen_ai_tool_name="calculate"' in calls and 'gen_ai_agent_id="a"' in calls
    assert "toolcell_cells_active" in answer.text
    assert "toolcell_call_duration_seconds_bucket" in answer.text
    assert token not in answer.text
    check_format(answer.text)


def check_format(text: str) -> None:
    """Let Prometheus's own program read it; in CI it has to be there."""
    promtool = shutil.which("promtool")
    if promtool is None:
        assert "CI" not in os.environ, "promtool is missing"
        pytest.skip("promtool is not installed")
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=text.encode(), capture_output=True
    )
    # Exit code 3 is style: `python_gc_*` of the client's own has names of the past.
    assert checked.returncode in (0, 3), checked.stderr


async def test_a_page_with_a_name_of_its_own_reads_nothing(tmp_path: Path) -> None:
    config = HostConfig.model_validate(
        {
            "telemetry": {"metrics_address": "127.0.0.1:0"},
            "server": {"allowed_hosts": ["prom.example:9464"]},
        }
    )
    async with serve_metrics(config) as url, httpx2.AsyncClient(timeout=60) as client:
        assert url is not None
        answers = {
            host: (await client.get(url, headers={"host": host})).status_code
            for host in ("evil.example", "prom.example:9464", "10.0.0.7", "[", "")
        }
        posted = await client.post(url)
    assert answers == {
        "evil.example": 403,
        "prom.example:9464": 200,
        "10.0.0.7": 200,
        "[": 403,
        "": 403,
    }
    assert posted.status_code == 405


@pytest.mark.promise("JC2")
async def test_an_address_in_use_is_a_typed_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = HostConfig.model_validate({"telemetry": {"metrics_address": address}})
        with pytest.raises(
            ConfigError, match=r"telemetry\.metrics_address.*cannot listen"
        ):
            async with serve_metrics(config):
                pass


async def test_without_an_address_nothing_listens() -> None:
    async with serve_metrics(HostConfig()) as url:
        assert url is None
