"""MCP servers in cells use credentials of the host, and never have them."""

from __future__ import annotations

import json
import secrets
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from toolcell.host import HostConfig
from toolcell.host.runtime.mcp_toolsets import offering_toolset
from toolcell.sandbox import SandboxManager
from toolcell.tools import MCPCommand
from toolcell.tools.mcp_client import confined

from ...support.cells.mirror import mirroring
from ...support.cells.web_server import NAME, resolve_here, self_signed
from ...support.mcp.servers import CELL_SERVER
from ...support.sample_tools import call, executor

pytestmark = [pytest.mark.anyio, pytest.mark.promise("boundary-8")]

OTHER = "other.example.test"
VALUE = secrets.token_hex(20)
SEND = """__import__("urllib.request").request.urlopen(
    __import__("urllib.request").request.Request(
        "https://{host}:{port}/", headers={{"Authorization": "Bearer " + {token}}}
    )
).read().decode()"""


def config(
    folder: Path, port: int, certificate: Path, agents: list[str], network: list[str]
) -> HostConfig:
    """Return a host whose credential is for two hosts."""
    (folder / "token").write_text(VALUE)
    hosts = [f"{NAME}:{port}", f"{OTHER}:{port}"]
    server = {"command": "python3", "args": ["-c", CELL_SERVER.read_text()]}
    path = folder / "toolcell.toml"
    path.write_text(
        f"""
[sandbox]
backend = "subprocess"
[sandbox.network]
mode = "guarded"
inspect = {json.dumps(hosts)}
server_ca = "{certificate}"
[[sandbox.credentials]]
name = "github"
value = "file:{folder}/token"
hosts = {json.dumps(hosts)}
agents = {json.dumps(agents)}
variable = "GITHUB_TOKEN"
[tools.mcp.files]
command = "python3"
args = {json.dumps(server["args"])}
startup_seconds = 120
timeout_seconds = 120
[tools.mcp.files.cell]
network = {json.dumps(network)}
"""
    )
    return HostConfig.from_file(path, environ={})


async def asked(config: HostConfig, *expressions: str) -> list[Any]:
    async with offering_toolset(config, "files", {}) as toolset:
        results = [
            await executor(*toolset.tools).call(
                call("files__ask", expression=expression)
            )
            for expression in expressions
        ]
    return [json.loads(result.to_text()) for result in results]


@pytest.mark.parametrize("agents", [["mcp:files"], ["*"]])
async def test_a_server_uses_a_credential_that_it_never_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agents: list[str]
) -> None:
    manager = partial(SandboxManager, resolver=resolve_here)
    monkeypatch.setattr(confined, "SandboxManager", manager)
    certificate = self_signed(tmp_path)
    with mirroring(certificate, VALUE) as mirror:
        network = [f"{NAME}:{mirror.port}", f"127.0.0.1:{mirror.port}"]
        own = config(tmp_path, mirror.port, certificate, agents, network)
        token = "os.environ['GITHUB_TOKEN']"
        there = SEND.format(host=NAME, port=mirror.port, token=token)
        elsewhere = SEND.format(host=OTHER, port=mirror.port, token=token)
        placeholder, answer, refused = await asked(own, token, there, elsewhere)

    assert len(placeholder) == len(VALUE) and placeholder != VALUE
    assert answer == placeholder
    assert refused == "URLError"
    [head] = mirror.heads
    assert f"Bearer {VALUE}\n" in head


@pytest.mark.parametrize(
    ("agents", "network"),
    [
        (["mcp:other", "builder"], [f"{NAME}:1"]),
        (["*"], [f"{NAME}:2"]),
        (["*"], []),
    ],
)
def test_a_server_has_no_credential_of_others_or_for_hosts_that_it_does_not_reach(
    tmp_path: Path, agents: list[str], network: list[str]
) -> None:
    own = config(tmp_path, 1, tmp_path / "none.pem", agents, network)
    cell = server(own).cell

    assert cell is not None
    assert (cell.credentials, cell.network.inspect) == ((), ())
    assert cell.network.hosts == tuple(network)


def test_a_server_is_inspected_where_both_its_network_and_a_credential_lead(
    tmp_path: Path,
) -> None:
    network = [f"{NAME}:1", "more.example.test:1"]
    own = config(tmp_path, 1, tmp_path / "none.pem", ["mcp:files"], network)
    cell = server(own).cell

    assert cell is not None
    assert cell.network.inspect == cell.credentials[0].hosts == (f"{NAME}:1",)
    assert cell.network.server_ca == str(tmp_path / "none.pem")


def server(config: HostConfig) -> MCPCommand:
    toolset: Any = offering_toolset(config, "files", {})
    found = toolset._connections._server
    assert isinstance(found, MCPCommand)
    return found
