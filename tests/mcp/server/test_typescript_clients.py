"""What models read of refused calls, through clients on the TypeScript SDKs."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from ...conftest import missing
from ...support.cells.npm_programs import NotInstalledError, node, node_folder
from ...support.mcp.served_hosts import CONFIG, written
from ...support.toolcell_command import TOOLCELL

pytestmark = pytest.mark.promise("N1")

SDKS = {
    "1.x": (
        "@modelcontextprotocol/sdk/client/index.js",
        "@modelcontextprotocol/sdk/client/stdio.js",
    ),
    "2.x": ("@modelcontextprotocol/client", "@modelcontextprotocol/client/stdio"),
}
PROGRAM = """
import { Client } from "%s";
import { StdioClientTransport } from "%s";
const [command, ...args] = JSON.parse(process.argv[2]);
const client = new Client({ name: "test", version: "1" });
await client.connect(new StdioClientTransport({ command, args }));
// The client checks results of the tools that it has listed.
const { tools } = await client.listTools();
const told = { schemas: tools.map(tool => Boolean(tool.outputSchema)) };
for (const [name, params] of Object.entries(JSON.parse(process.argv[3]))) {
  try {
    told[name] = await client.callTool(params);
  } catch (error) {
    told[name] = { thrown: String(error) };
  }
}
console.log(JSON.stringify(told));
await client.close();
"""
CALLS = {
    "waiting": {"name": "get_today_date", "arguments": {}},
    "right": {"name": "calculate", "arguments": {"expression": "6 * 7"}},
    "invalid": {"name": "calculate", "arguments": {"expr": 7}},
    "failed": {"name": "calculate", "arguments": {"expression": "1 / 0"}},
    "denied": {"name": "calculate", "arguments": {"expression": "1"}},
}


@pytest.fixture(scope="module", params=SDKS)
def told(request: pytest.FixtureRequest, tmp_path_factory: Any) -> dict[str, Any]:
    """What a client on an SDK was told of each call."""
    try:
        modules = node_folder()
    except NotInstalledError as error:
        missing(str(error))
    folder = tmp_path_factory.mktemp("client")
    (folder / "node_modules").symlink_to(modules)
    (folder / "client.mjs").write_text(PROGRAM % SDKS[request.param])
    limited = CONFIG.replace("ask =", 'rate_limits = ["2/minute"]\nask =')
    serve = [TOOLCELL, "serve", "--config", str(written(folder, limited))]
    done = subprocess.run(
        [node(modules), "client.mjs", json.dumps(serve), json.dumps(CALLS)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def error(answer: dict[str, Any]) -> dict[str, Any]:
    """Return what the model reads; programs find the same."""
    assert "thrown" not in answer, answer
    assert answer["isError"] is True
    read: dict[str, Any] = json.loads(answer["content"][0]["text"])
    assert answer["_meta"]["toolcell/error"] == read
    return read


def test_results_are_checked_by_the_client(told: dict[str, Any]) -> None:
    assert all(told["schemas"])
    assert told["right"]["structuredContent"] == {"result": 42}


def test_a_wrong_argument_reaches_the_model(told: dict[str, Any]) -> None:
    invalid = error(told["invalid"])

    assert (invalid["code"], invalid["field"]) == ("tool.validation", "expression")
    assert "expression" in invalid["message"]


def test_a_tools_failure_reaches_the_model(told: dict[str, Any]) -> None:
    failed = error(told["failed"])

    assert failed["message"] == "division by zero (use another divisor than 0)"


def test_a_denial_reaches_the_model(told: dict[str, Any]) -> None:
    denied = error(told["denied"])

    assert (denied["code"], denied["reason"]) == ("guard.denied", "rate_limited")
    assert 0 < denied["retry_after_ms"] <= 60_000


def test_the_id_of_a_waiting_approval_reaches_the_model(told: dict[str, Any]) -> None:
    waiting = error(told["waiting"])

    assert waiting["reason"] == "approval_unavailable"
    assert waiting["approval_id"] in waiting["message"]
