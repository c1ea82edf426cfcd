"""A sandbox of OpenAI Agents has files, commands, ports and snapshots of a cell."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from .environment import BACKENDS, run, suite_config

SCRIPT = """
import asyncio, io, os, pathlib, urllib.request
from agents.sandbox import LocalSnapshotSpec, Manifest, errors
from agents.sandbox.entries import File
from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.providers import openai_agents as toolcell_agents
from toolcell.sandbox import SandboxConfig

config = SandboxConfig.model_validate_json(os.environ["TOOLCELL_SUITE_CONFIG"])
policy = AgentPolicy(
    agent_id="openai-agents",
    allow=["exec", "write_file", "connect", "read_file"],
    deny=[{"tools": ["read_file"], "when": {"path": {"equals": "/workspace/secret"}}}],
)
SERVE = '''
cd a && python3 -m http.server 8000 >log 2>&1 &
until python3 -c 'import socket; socket.create_connection(("127.0.0.1", 8000))' 2>log
do sleep 0.05; done
'''

async def main():
    client = toolcell_agents.ToolcellSandboxClient(config, guard=ActionGuard([policy]))
    sandbox = await client.create(
        manifest=Manifest(entries={"a/b": File(content=b"hello")}),
        snapshot=LocalSnapshotSpec(base_path=pathlib.Path.cwd()),
        options=toolcell_agents.ToolcellClientOptions(exposed_ports=(8000,)),
    )
    async with sandbox:
        done = await sandbox.exec("cat a/b; pwd; exit 3")
        print(done.stdout, done.exit_code)
        await sandbox.write(pathlib.Path("raw"), io.BytesIO(bytes([0, 255])))
        print((await sandbox.read(pathlib.Path("raw"))).read())
        for name in ["missing", "secret"]:
            try:
                await sandbox.read(pathlib.Path(name))
            except errors.SandboxError as error:
                print(type(error).__name__)
        await sandbox.exec(SERVE)
        url = (await sandbox.resolve_exposed_port(8000)).url_for("http")
        get = lambda: urllib.request.urlopen(url + "b").read()
        print(await asyncio.to_thread(get))
    print(await sandbox.running())
    state = client.deserialize_session_state(
        client.serialize_session_state(sandbox.state)
    )
    async with await client.resume(state) as again:
        print((await again.read(pathlib.Path("raw"))).read())

asyncio.run(main())
"""
PRINTED = [
    r"b'hello/workspace\n' 3",
    r"b'\x00\xff'",
    "WorkspaceReadNotFoundError",
    "WorkspaceArchiveReadError",
    "b'hello'",
    "False",
    r"b'\x00\xff'",
]


@pytest.mark.timeout(400)
@BACKENDS
def test_a_sandbox_has_what_a_cell_has(row: Any, tmp_path: Path) -> None:
    config = suite_config(row).model_dump_json(exclude_defaults=True)
    environment = {**os.environ, "TOOLCELL_SUITE_CONFIG": config}

    printed = run("-c", SCRIPT, cwd=tmp_path, env=environment, timeout=380)

    assert printed.splitlines() == PRINTED
