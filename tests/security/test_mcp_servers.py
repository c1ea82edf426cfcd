"""MCP servers of strangers in cells: what they try, and what it costs others."""

from __future__ import annotations

import builtins
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import ToolExecutionError, ToolResult
from toolcell.sandbox import Limits
from toolcell.tools import MCPCommand, MCPToolset

from ..conftest import CONFINED, SUBPROCESS, BackendRow
from ..support.mcp.servers import be_patient, in_cell, processes_of
from ..support.process_tree import resident_bytes
from ..support.sample_tools import call, executor

pytestmark = pytest.mark.anyio
PATIENT = 120.0


@asynccontextmanager
async def opened(
    backend: BackendRow,
    *args: str,
    env: dict[str, str] | None = None,
    memory_mib: int = 128,
    **options: Any,
) -> AsyncIterator[MCPToolset]:
    """Open the hostile server in a small cell of a backend."""
    config = backend.config(limits=Limits(memory_mib=memory_mib, pids=32))
    patient = {"startup_seconds": PATIENT, "timeout_seconds": PATIENT}
    server = in_cell(config, *args, env=env)
    async with MCPToolset("test", server, pins=None, **(patient | options)) as toolset:
        yield toolset


async def ask(toolset: MCPToolset, name: str, **arguments: Any) -> ToolResult:
    return await executor(*toolset.tools).call(call(f"test__{name}", **arguments))


async def value(toolset: MCPToolset, expression: str) -> Any:
    """Return what an expression is in the server; of an error its class."""
    result = await ask(toolset, "ask", expression=expression)
    assert result.ok, result.error
    return json.loads(result.to_text())


@pytest.mark.promise("door-1")
async def test_a_server_has_nothing_of_the_host(
    backend: BackendRow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "id_rsa").write_text("hunter2")
    monkeypatch.setenv("HOST_SECRET", "hunter2")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        tries = (
            f"open('{tmp_path}/id_rsa').read()",
            f"os.listdir('{tmp_path}')",
            "open('/etc/shadow').read()",
            "open('/etc/written', 'w')",
            f"open('/proc/{os.getpid()}/environ').read()",
            "os.mkdir('/sys/fs/cgroup/mine')",
            f"__import__('socket').create_connection(('127.0.0.1', {port}), 5)",
            "__import__('socket').create_connection(('192.0.2.1', 443), 5)",
        )
        async with opened(backend, env={"KEY": "its own"}) as toolset:
            came = {each: await value(toolset, each) for each in tries}
            environment = await value(toolset, "dict(os.environ)")
            assert "odd" in toolset.unusable and len(toolset.tools) > 1

    for expression, name in came.items():
        error = getattr(builtins, str(name), None) or getattr(socket, str(name), None)
        assert isinstance(error, type) and issubclass(error, OSError), (
            expression,
            name,
        )
    assert environment["KEY"] == "its own"
    assert "hunter2" not in str(environment)


@pytest.mark.promise("door-2")
@pytest.mark.parametrize("name", ["die", "flood", "half"])
async def test_a_server_that_breaks_its_connection_begins_anew(
    backend: BackendRow, name: str
) -> None:
    async with opened(backend) as toolset:
        assert await value(toolset, "open('mark', 'w').close()") is None
        lost = await ask(toolset, name)
        left = await value(toolset, "os.path.exists('mark')")

    assert lost.error is not None
    assert lost.error.details == {"outcome": "unknown"}
    assert left is False


@pytest.mark.promise("door-2")
async def test_processes_and_words_of_a_server_end_at_its_limits(
    backend: BackendRow,
) -> None:
    # gVisor counts some 4 MiB for each of the 31 processes.
    async with opened(backend, memory_mib=256) as toolset:
        assert (await ask(toolset, "stderr", mib=16)).ok
        forked = await ask(toolset, "fork")
        assert forked.ok and 1 < int(forked.to_text()) < 100
        assert await value(toolset, "1 + 1") == 2


FILL = "sum(open(f'{n}', 'wb').write(bytes(2**20)) for n in range(2**12))"


@pytest.mark.promise("door-2")
async def test_files_of_a_server_end_at_its_limit(backend: BackendRow) -> None:
    async with opened(backend) as toolset:
        filled = await ask(toolset, "ask", expression=FILL)
        assert await value(toolset, "1 + 1") == 2

    if backend is CONFINED:
        assert filled.error is not None
        assert filled.error.details == {"outcome": "unknown"}
    else:
        assert filled.to_text() == '"OSError"'


@pytest.mark.promise("door-3")
async def test_a_server_that_ends_for_its_files_says_so(backend: BackendRow) -> None:
    server = MCPCommand(command="python3", args=("-c", FILL), cell=backend.config())
    with pytest.raises(ToolExecutionError, match=r"`limits\.disk_mib`"):
        async with MCPToolset("test", server, pins=None, startup_seconds=PATIENT):
            pass


@pytest.mark.full
@pytest.mark.promise("door-2")
async def test_a_gibibyte_of_words_takes_no_memory_of_the_host(
    backend: BackendRow,
) -> None:
    async with opened(backend, timeout_seconds=600.0) as toolset:
        assert await value(toolset, "1 + 1") == 2
        before = resident_bytes(os.getpid())
        said = await ask(toolset, "stderr", mib=1024)
        after = resident_bytes(os.getpid())

    assert said.ok
    assert after - before < 64 << 20


@pytest.mark.promise("door-2")
async def test_a_server_that_does_not_answer_or_end_goes_with_its_toolset(
    backend: BackendRow, tmp_path: Path
) -> None:
    async with opened(backend, "deaf", str(tmp_path)) as toolset:
        for tool in toolset.tools:
            object.__setattr__(tool, "timeout", 0.5)
        late = await ask(toolset, "never")
        be_patient(toolset)
        assert await value(toolset, "1 + 1") == 2
        is_seen = backend is SUBPROCESS
        assert bool(processes_of(tmp_path)) or not is_seen

    assert late.status == "timeout"
    assert processes_of(tmp_path) == []
