"""The findings about the MCP servers of a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolcell.host import HostConfig
from toolcell.host.runtime.server_checks import check_servers

from ...support.mcp.servers import Scripted

pytestmark = pytest.mark.anyio


@pytest.mark.promise("door-3")
async def test_each_server_is_tried(tmp_path: Path) -> None:
    server = Scripted(tmp_path, "echo", "die")
    path = tmp_path / "toolcell.toml"
    path.write_text(
        '[sandbox]\nbackend = "subprocess"\n'
        f"{server.table('works')}"
        '[tools.mcp.missing]\ncommand = "no-such-program"\n'
        f'{server.table("folder")}folder = "gone"\n'
        '[tools.mcp.secret]\ncommand = "true"\nsecret_env = { KEY = "env:NO_KEY" }\n'
        '[tools.mcp.away]\nurl = "http://127.0.0.1:1/mcp"\n'
    )
    config = HostConfig.from_file(path, environ={})
    works_, missing, folder, secret, away = await check_servers(config, {})

    assert (works_.ok, works_.detail) == (
        True,
        "runs unconfined on the host, offers 2 tools",
    )
    assert not any(each.ok for each in (missing, folder, secret, away))
    assert "no-such-program" in missing.detail and "has no such program" in missing.fix
    assert "No such file" in folder.detail
    assert "NO_KEY" in secret.detail
    assert away.name == "MCP server away" and "cannot be reached" in away.detail
