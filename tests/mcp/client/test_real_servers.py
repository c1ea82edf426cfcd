"""Servers of PyPI and npm, as they are published, in cells: listed, called, ended."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import PackageError, SandboxUnavailableError, ToolExecutionError
from toolcell.sandbox import Mount
from toolcell.tools import MCPCommand, MCPToolset

from ...conftest import SUBPROCESS, BackendRow, missing
from ...support.cells.node_cells import npm_options
from ...support.sample_tools import call, executor

pytestmark = [pytest.mark.anyio, pytest.mark.promise("door-5")]
ON_SUBPROCESS = pytest.mark.parametrize(
    "backend", [SUBPROCESS], indirect=True, ids=["subprocess"], scope="session"
)
PATIENT = 240.0


async def answer(
    backend: BackendRow,
    packages: list[str],
    argv: list[str],
    wanted: dict[str, Any],
    *,
    mounts: tuple[Mount, ...] = (),
    env: dict[str, str] | None = None,
    **options: Any,
) -> str:
    """Return what a server answers to its last call, as text."""
    cell = backend.config(packages=packages, mounts=mounts, **options)
    command = MCPCommand(
        command=argv[0], args=tuple(argv[1:]), cell=cell, env=env or {}
    )
    toolset = MCPToolset(
        "s", command, pins=None, startup_seconds=PATIENT, timeout_seconds=PATIENT
    )
    try:
        async with toolset:
            assert toolset.unusable == {}
            host = executor(*toolset.tools)
            results = [
                await host.call(call(f"s__{name}", name, **arguments))
                for name, arguments in wanted.items()
            ]
    except ToolExecutionError as error:
        if isinstance(error.__cause__, PackageError | SandboxUnavailableError):
            missing(f"no index of packages answers: {error.__cause__}")
        raise
    assert all(result.ok for result in results), results
    return results[-1].to_text()


async def test_time(backend: BackendRow) -> None:
    asked = {
        "source_timezone": "Europe/Berlin",
        "time": "12:00",
        "target_timezone": "Asia/Kolkata",
    }
    text = await answer(
        backend, ["mcp-server-time"], ["mcp-server-time"], {"convert_time": asked}
    )

    assert "Asia/Kolkata" in text


@pytest.mark.full
async def test_sqlite(backend: BackendRow) -> None:
    text = await answer(
        backend,
        ["mcp-server-sqlite", "mcp<2"],
        ["mcp-server-sqlite", "--db-path", "notes.db"],
        {
            "create_table": {"query": "create table notes (text)"},
            "write_query": {"query": "insert into notes values ('tea')"},
            "read_query": {"query": "select * from notes"},
        },
    )

    assert "tea" in text


async def test_fetch_without_network_says_so(backend: BackendRow) -> None:
    cell = backend.config(packages=["mcp-server-fetch"])
    command = MCPCommand(command="mcp-server-fetch", cell=cell)
    async with MCPToolset("s", command, pins=None, startup_seconds=PATIENT) as toolset:
        asked = call("s__fetch", url="https://example.com/")
        result = await executor(*toolset.tools).call(asked)

    assert not result.ok


async def test_git(backend: BackendRow, tmp_path: Path) -> None:
    if backend.name != "subprocess":
        pytest.skip("images of cells have no git")
    repository = tmp_path / "repository"
    commands = ("init -q", "commit -q --allow-empty -m first-of-all")
    repository.mkdir()
    for command in commands:
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *command.split()],
            cwd=repository,
            check=True,
        )
    for folder in (*tmp_path.parents[:2], tmp_path):
        folder.chmod(folder.stat().st_mode | 0o055)
    # Its files are another user's, which git refuses otherwise.
    names = {"COUNT": "1", "KEY_0": "safe.directory", "VALUE_0": "*"}
    text = await answer(
        backend,
        ["mcp-server-git"],
        ["mcp-server-git"],
        {"git_log": {"repo_path": "/repository"}},
        mounts=(Mount(source=str(repository), target="/repository"),),
        env={f"GIT_CONFIG_{name}": text for name, text in names.items()},
    )

    assert "first-of-all" in json.dumps(text)


async def of_npm(
    backend: BackendRow,
    package: str,
    argv: list[str],
    wanted: dict[str, Any],
    env: dict[str, str] | None = None,
) -> str:
    """Return what a server of npm answers to its last call, as text."""
    options: dict[str, Any] = {"npm": (package,), **npm_options(backend)}
    return await answer(backend, [], argv, wanted, env=env, **options)


@ON_SUBPROCESS
@pytest.mark.promise("door-9")
@pytest.mark.full
async def test_memory(backend: BackendRow) -> None:
    one = {"name": "tea", "entityType": "drink", "observations": ["green"]}
    text = await of_npm(
        backend,
        "@modelcontextprotocol/server-memory",
        ["mcp-server-memory"],
        {"create_entities": {"entities": [one]}, "search_nodes": {"query": "green"}},
        {"MEMORY_FILE_PATH": "/work/memory.jsonl"},
    )

    assert "drink" in text


@ON_SUBPROCESS
@pytest.mark.promise("door-9")
async def test_filesystem(backend: BackendRow) -> None:
    note = {"path": "/work/note", "content": "for servers"}
    text = await of_npm(
        backend,
        "@modelcontextprotocol/server-filesystem",
        ["mcp-server-filesystem", "/work"],
        {"write_file": note, "read_text_file": {"path": "/work/note"}},
    )

    assert "for servers" in text


BOOK = {"path": "/work/book.xlsx"}
OTHERS: list[tuple[list[str], list[str], dict[str, Any], dict[str, str], str]] = [
    (
        ["mcp-server-calculator"],
        ["mcp-server-calculator"],
        {"calculate": {"expression": "6 * 7"}},
        {},
        "42",
    ),
    (
        ["mcp-shell-server"],
        ["mcp-shell-server"],
        {"shell_execute": {"command": ["echo", "tea"], "directory": "/work"}},
        {"ALLOW_COMMANDS": "echo"},
        "tea",
    ),
    (
        ["excel-mcp-server"],
        ["excel-mcp-server", "stdio"],
        {"create_workbook": BOOK, "describe_workbook": BOOK},
        {},
        "Sheet",
    ),
]


@pytest.mark.full
@pytest.mark.parametrize(
    ("packages", "argv", "wanted", "env", "told"),
    OTHERS,
    ids=[argv[0] for _, argv, *_ in OTHERS],
)
async def test_others(
    backend: BackendRow,
    packages: list[str],
    argv: list[str],
    wanted: dict[str, Any],
    env: dict[str, str],
    told: str,
) -> None:
    assert told in await answer(backend, packages, argv, wanted, env=env)


THOUGHT = {"thought": "x", "thoughtNumber": 7, "totalThoughts": 9}
OF_NPM: list[tuple[str, str, dict[str, Any], str]] = [
    (
        "@modelcontextprotocol/server-everything",
        "mcp-server-everything",
        {"get-sum": {"a": 2, "b": 40}},
        "42",
    ),
    (
        "@modelcontextprotocol/server-sequential-thinking",
        "mcp-server-sequential-thinking",
        {"sequentialthinking": {**THOUGHT, "nextThoughtNeeded": False}},
        '"thoughtNumber": 7',
    ),
    (
        "mcp-server-commands",
        "mcp-server-commands",
        {"run_command": {"command": "echo t''ea"}},
        "tea",
    ),
]


@pytest.mark.full
@pytest.mark.promise("door-9")
@pytest.mark.parametrize(
    ("package", "command", "wanted", "told"),
    OF_NPM,
    ids=[command for _, command, *_ in OF_NPM],
)
async def test_others_of_npm(
    backend: BackendRow, package: str, command: str, wanted: dict[str, Any], told: str
) -> None:
    assert told in await of_npm(backend, package, [command], wanted)
