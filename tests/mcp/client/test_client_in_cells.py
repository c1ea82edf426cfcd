"""MCP servers that are programs, in cells: starts, last words, one for each agent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import ConfigError, ToolExecutionError, ToolResult
from toolcell.host import Host, HostConfig
from toolcell.sandbox import Limits, Network, SandboxConfig
from toolcell.tools import MCPCommand, MCPToolset
from toolcell.tools.mcp_client.confined import server_config

from ...conftest import BackendRow
from ...support.mcp.servers import CELL_SERVER, in_cell, processes_of
from ...support.polling import until
from ...support.sample_tools import call, executor
from ...support.toolcell_command import toolcell

pytestmark = pytest.mark.anyio
PATIENT = 120.0


@asynccontextmanager
async def opened(server: MCPCommand, **options: Any) -> AsyncIterator[MCPToolset]:
    patient = {"startup_seconds": PATIENT, "timeout_seconds": PATIENT}
    async with MCPToolset("test", server, pins=None, **(patient | options)) as toolset:
        yield toolset


async def ask(toolset: MCPToolset, agent_id: str | None, expression: str) -> ToolResult:
    wanted = call("test__ask", expression=expression)
    return await executor(*toolset.tools).call(
        {**wanted.model_dump(), "agent_id": agent_id}
    )


async def value(toolset: MCPToolset, agent_id: str | None, expression: str) -> Any:
    result = await ask(toolset, agent_id, expression)
    assert result.ok, result.error
    return json.loads(result.to_text())


MISSING = "Error: Cannot find module lodash"


@pytest.mark.promise("door-3")
@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["no-such"], ["no-such: No such file", "in `packages` or `npm` of its cell"]),
        (["bunx", "x"], ["`npm` of its cell and its command"]),
        (["env", "deno"], ["exit code 127", "the interpreter that it names"]),
        (["/etc/passwd"], ["/etc/passwd: Permission denied", "make it executable"]),
        (["uvx", "x"], ["uvx: No such file", "`packages` of its cell and its command"]),
        (["python3", "-c", "import mcp"], ["exit code 1", "No module named 'mcp'"]),
        (
            ["bash", "-c", "nothing-here"],
            ["nothing-here: command not", "a program that it starts is not there"],
        ),
        (
            ["bash", "-c", f"echo {MISSING} >&2; seq 9 >&2; exit 1"],
            [f"{MISSING}\n...\n2\n3\n", "name it in `npm` of its cell"],
        ),
        (["bash", "-c", "printf 'usage: a KEY'; exit 2"], ["words:\nusage: a KEY"]),
        (["python3", "-c", "raise MemoryError"], ["code 1", "`limits.memory_mib`"]),
        (["bash", "-c", "echo $KEY is bad >&2; exit 3"], ["code 3", "*** is bad"]),
        (["bash", "-c", "kill -9 $$"], ["killed"]),
        (["python3", "-c", "b'x' * 2**28"], ["out_of_memory", "`limits.memory_mib`"]),
        (
            ["bash", "-c", "python3 -c \"b'x' * 2**28\" 2>/dev/null || exit 1"],
            ["exit code 1; meanwhile a process", "`limits.memory_mib`"],
        ),
        (["bash", "-c", "printf '\\33[2J' >&2; exit 1"], ["\\u{1b}[2J"]),
        (["bash", "-c", "echo no MCP; exit 1"], ["exit code 1"]),
    ],
    ids=lambda each: each[-1] if isinstance(each, list) else "",
)
async def test_a_server_that_does_not_start_says_why(
    backend: BackendRow, argv: list[str], told: list[str]
) -> None:
    cell = backend.config(limits=Limits(memory_mib=128))
    server = MCPCommand(
        command=argv[0], args=tuple(argv[1:]), cell=cell, env={"KEY": "hunter2"}
    )
    with pytest.raises(ToolExecutionError) as caught:
        async with opened(server):
            pass

    text = str(caught.value)
    assert "no connection to the MCP server test" in text
    for each in told:
        assert each in text
    assert "hunter2" not in text and "\x1b" not in text


@pytest.mark.promise("door-3")
async def test_a_server_that_is_silent_says_what_it_said() -> None:
    script = "echo I wait for a key >&2; sleep 999"
    server = MCPCommand(command="bash", args=("-c", script), cell=config())
    with pytest.raises(ToolExecutionError, match=r"(?s)within 15 s.*wait for a key"):
        async with opened(server, startup_seconds=15):
            pass


@pytest.mark.promise("door-3")
async def test_a_cell_that_cannot_be_made_says_why() -> None:
    cell = SandboxConfig(backend="process", minimum_isolation="process")
    absent = SandboxConfig(backend="docker", docker_host="unix:///no/such.sock")
    for each, why in (
        (cell, "'process' isolation runs no commands"),
        (absent, "there is no cell for it"),
    ):
        with pytest.raises(ToolExecutionError) as caught:
            async with opened(in_cell(each)):
                pass
        assert "the MCP server test" in str(caught.value)
        assert why in str(caught.value)


@pytest.mark.promise("door-4")
async def test_each_agent_has_a_server_of_its_own() -> None:
    async with opened(in_cell(config()), per_agent=True, max_agents=2) as toolset:
        for agent in ("a", "b"):
            assert await value(toolset, agent, "os.path.exists('mark')") is False
            assert await value(toolset, agent, "open('mark', 'w').close()") is None
        assert await value(toolset, "a", "os.path.exists('mark')") is True
        # There is room for two: b's has been idle longer.
        assert await value(toolset, "c", "os.path.exists('mark')") is False
        assert await value(toolset, "a", "os.path.exists('mark')") is True
        assert await value(toolset, "b", "os.path.exists('mark')") is False


@pytest.mark.promise("door-4")
async def test_where_all_servers_are_at_work_a_call_is_refused() -> None:
    async with opened(in_cell(config()), per_agent=True, max_agents=1) as toolset:
        host = executor(*toolset.tools)
        async with anyio.create_task_group() as tasks:
            wait = {**call("test__never").model_dump(), "agent_id": "a"}
            tasks.start_soon(host.call, wait)
            await until(lambda: any(place.calls for place in places(toolset)))
            refused = await ask(toolset, "b", "1")
            tasks.cancel_scope.cancel()
        assert await value(toolset, "b", "1 + 1") == 2

    assert refused.error is not None and "no room for another" in refused.error.message


@pytest.mark.promise("door-4")
async def test_an_idle_server_of_an_agent_ends(tmp_path: Path) -> None:
    server = in_cell(config(), str(tmp_path))
    async with opened(server, per_agent=True, idle_seconds=0.2) as toolset:
        assert await value(toolset, "a", "open('mark', 'w').close()") is None
        await until(lambda: processes_of(tmp_path) == [])
        assert await value(toolset, "a", "os.path.exists('mark')") is False


def test_options_of_the_other_place_are_refused(tmp_path: Path) -> None:
    refused: list[dict[str, Any]] = [
        {"folder": tmp_path},
        {"where": "host", "cell": config()},
        {"where": "somewhere"},
        {"cell": config(network=Network.guarded())},
    ]
    for options in refused:
        with pytest.raises(ConfigError):
            MCPCommand(command="x", **options)


def test_limits_that_are_left_out_are_those_of_servers() -> None:
    made = server_config(config(limits=Limits(memory_mib=512))).limits
    assert (made.memory_mib, made.open_files, made.connections) == (512, 1_024, 100_000)
    assert server_config(None).limits.network_bytes == 2**40


@pytest.mark.promise("door-1")
def test_no_cell_of_a_server_is_used_again_or_made_ahead() -> None:
    made = server_config(config(programs_per_cell=100, pool=2))
    assert (made.programs_per_cell, made.pool) == (1, 0)


@pytest.mark.promise("door-1")
async def test_a_host_runs_servers_in_cells_unless_it_is_told_not_to(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "shown"
    folder.mkdir()
    (folder / "note").write_text("for servers")
    open_to_others(folder)
    server = {"command": "python3", "args": ["-c", CELL_SERVER.read_text()]}
    lines = [f"{key} = {json.dumps(text)}" for key, text in server.items()]
    path = tmp_path / "toolcell.toml"
    path.write_text(
        "\n".join(
            (
                '[sandbox]\nbackend = "subprocess"',
                "[tools.mcp.files]",
                *lines,
                "startup_seconds = 120\ntimeout_seconds = 120",
                "[tools.mcp.files.cell]",
                f'mounts = [{{ source = "{folder}", target = "/shown" }}]',
                "limits = { memory_mib = 128 }",
                '[[policies]]\nagent_id = "a"\nallow = ["files__*"]',
            )
        )
    )
    pinned = toolcell("tools", "pin", "--yes", "--config", str(path))
    assert pinned.returncode == 0, pinned.stderr
    assert b"! odd cannot be used" in pinned.stdout
    assert b"not confined" not in pinned.stdout
    async with Host.from_config(path, environ={}) as host:
        tool = next(each for each in host.tools("a") if each.name == "files__ask")
        asked = [
            await host.call("files__ask", {"expression": text}, agent_id="a")
            for text in ("open('/shown/note').read()", f"os.listdir('{tmp_path}')")
        ]

    assert "unconfined" not in tool.tags
    assert [json.loads(each.to_text()) for each in asked] == [
        "for servers",
        "FileNotFoundError",
    ]


@pytest.mark.promise("door-1")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("command = 'x'\nwhere = 'host'\ncell = {}", "a cell or where"),
        ("command = 'x'\nfolder = 'y'", "cell.mounts"),
        ("command = 'x'\nwhere = 'elsewhere'", "tools.mcp.s.where"),
        ("url = 'https://x/'\ncell = {}", "cell belong to a command"),
        ("command = 'x'\ncell = { network = ['x'] }", "tools.mcp.s.cell.network"),
        ("command = 'x'\ncell = { npm = ['../x'] }", "tools.mcp.s.cell.npm"),
        ("command = 'x'\ncell = { limits = { wall_seconds = 3 } }", "wall_seconds"),
    ],
)
def test_a_cell_is_described_in_one_clear_way(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "toolcell.toml"
    path.write_text(f"[tools.mcp.s]\n{text}")
    with pytest.raises(ConfigError, match=problem):
        HostConfig.from_file(path, environ={})


def config(**options: Any) -> SandboxConfig:
    return SandboxConfig(**({"backend": "subprocess"} | options))


def places(toolset: MCPToolset) -> list[Any]:
    return list(toolset._connections._places.values())


def open_to_others(folder: Path) -> None:
    """Let programs of other users read what is in a folder of this test."""
    for place in (*folder.parents[:3], folder, *folder.iterdir()):
        place.chmod(place.stat().st_mode | 0o055)
