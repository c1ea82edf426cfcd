"""Readiness: a host that could not take a call says so, and what is missing."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from toolcell.core import SandboxUnavailableError
from toolcell.host import Host
from toolcell.sandbox import SandboxManager

from ...conftest import DOCKER, ENGINE_SOCKET, BackendRow, missing, why_no_docker
from ...support.guard.redis_server import RedisServer
from ...support.mcp.served_hosts import (
    CONFIG,
    WITH_CODE,
    ServedMCP,
    http_served,
    written,
)

pytestmark = pytest.mark.anyio

Look = Callable[[], Awaitable[tuple[int, Any]]]


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcell.host.runtime.readiness.FRESH_SECONDS", 0.0)


@asynccontextmanager
async def looking(server: ServedMCP) -> AsyncIterator[Look]:
    async with httpx2.AsyncClient(timeout=60) as http:

        async def look() -> tuple[int, Any]:
            answer = await http.get(server.url.replace("/mcp", "/readyz"))
            return answer.status_code, answer.json()

        yield look


READY = (200, {"status": "ready"})


def without(*names: str) -> tuple[int, Any]:
    return 503, {"status": "unavailable", "missing": list(names)}


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("guard.db", "store"),
        ("approvals.db", "approvals"),
        ("records.db", "records"),
    ],
)
async def test_a_store_that_cannot_be_written_is_told(
    tmp_path: Path, file: str, part: str
) -> None:
    async with http_served(tmp_path) as server, looking(server) as look:
        before = await look()
        with closing(sqlite3.connect(tmp_path / "state" / file)) as other:
            other.execute("BEGIN IMMEDIATE")
            during = await look()
        after = await look()

    assert (before, during, after) == (READY, without(part), READY)


@pytest.mark.promise("C8")
async def test_a_full_disk_is_told(tmp_path: Path) -> None:
    """Nothing can be written there, though every file can still be locked."""
    disk = tmp_path / "state"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        missing("no tmpfs can be mounted")
    try:
        async with http_served(tmp_path) as server, looking(server) as look:
            before = await look()
            with suppress(OSError), (disk / "rest").open("wb", buffering=0) as rest:
                while True:
                    rest.write(b"0" * 4_096)
            during = await look()
            (disk / "rest").unlink()
            after = await look()
    finally:
        subprocess.run(["umount", str(disk)], check=True)

    assert (before, during, after) == (READY, without("records"), READY)


@pytest.mark.promise("C7")
async def test_damaged_records_are_told_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with http_served(tmp_path):
        pass
    path = tmp_path / "state" / "records.db"
    with closing(sqlite3.connect(path)) as file:
        [[page]] = file.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'tool_records'"
        )
        [[size]] = file.execute("PRAGMA page_size")
    with path.open("r+b") as damaged:
        damaged.seek((page - 1) * size)
        damaged.write(b"\xff" * size)
    async with http_served(tmp_path) as server, looking(server) as look:
        named = str(path) in caplog.text
        told = await look()

    assert named
    assert told == without("records")


@pytest.mark.parametrize(
    ("mode", "away"), [("closed", without("store")), ("local(3)", READY)]
)
async def test_a_store_that_is_gone_is_told_unless_calls_go_on_without(
    tmp_path: Path, mode: str, away: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = RedisServer(tmp_path)
    redis.start()
    monkeypatch.setenv("REDIS_OF_TEST", redis.url)
    redis_lines = f'redis_url = "env:REDIS_OF_TEST"\non_failure = "{mode}"'
    text = CONFIG.replace("[state]", f"[state]\n{redis_lines}")
    try:
        path = written(tmp_path, text)
        async with Host.from_config(path) as host, looked(host) as look:
            before = await look()
            redis.kill()
            during = await look()
    finally:
        redis.kill()

    assert (before, during) == (READY, away)


@asynccontextmanager
async def looked(host: Host) -> AsyncIterator[Look]:
    async with ServedMCP(host).serving() as server, looking(server) as look:
        yield look


def end_launcher(server: ServedMCP) -> None:
    sandbox: Any = server.server.host.sandbox
    process = sandbox._backend._launcher._process
    process.kill()
    process.wait()


async def test_a_sandbox_that_can_make_no_cell_is_told(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(os.path.realpath(sys.executable))
    text = WITH_CODE.replace("[sandbox]\n", f'[sandbox]\npython = "{python}"\n')
    async with http_served(tmp_path, text=text) as server, looking(server) as look:
        before = await look()
        end_launcher(server)
        # A launcher that died is started again.
        healed = await look()
        python.unlink()
        end_launcher(server)
        during = await look()

    assert (before, healed, during) == (READY, READY, without("sandbox"))


async def test_what_makes_cells_is_looked_at(backend: BackendRow) -> None:
    manager = SandboxManager(backend.config())
    with pytest.raises(SandboxUnavailableError, match="not open"):
        await manager.check()
    async with manager:
        await manager.check()


@pytest.mark.docker
async def test_an_engine_that_went_away_is_told(tmp_path: Path) -> None:
    if why := why_no_docker(None):
        missing(why)
    door = tmp_path / "engine.sock"
    door.symlink_to(ENGINE_SOCKET)
    async with SandboxManager(DOCKER.config(docker_host=f"unix://{door}")) as manager:
        await manager.check()
        door.unlink()
        with pytest.raises(SandboxUnavailableError):
            await manager.check()
        door.symlink_to(ENGINE_SOCKET)


async def test_answers_are_kept_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcell.host.runtime.readiness.FRESH_SECONDS", 3_600.0)
    async with http_served(tmp_path) as server, looking(server) as look:
        before = await look()
        with closing(sqlite3.connect(tmp_path / "state" / "guard.db")) as other:
            other.execute("BEGIN IMMEDIATE")
            during = await look()

    assert (before, during) == (READY, READY)
