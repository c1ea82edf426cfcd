"""Sandboxes whose cells are on the nodes of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from toolcell.cluster import NodeAgent, RedisDirectory, new_token
from toolcell.core import ConfigError
from toolcell.sandbox import SandboxManager

from ...conftest import SUBPROCESS
from ...support.guard.redis_server import RedisServer
from .served_sandboxes import POLICIES, Service, served

pytestmark = pytest.mark.anyio
TOKEN = new_token()
CLUSTER = """
[cluster]
directory = "env:DIRECTORY"
token = "env:TOKEN"
"""
FIT: dict[str, Any] = {
    "work_dir": "/home/user",
    "session_idle_seconds": 86_400.0,
    "session_lifetime_seconds": 86_400.0 * 30,
}


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), keeps=False)
    server.start()
    yield server.url
    server.stop()


@asynccontextmanager
async def node(
    redis_url: str, **options: Any
) -> AsyncIterator[tuple[SandboxManager, NodeAgent]]:
    """Run a node of two cells."""
    directory = RedisDirectory(redis_url, token=TOKEN)
    config = SUBPROCESS.config(max_concurrency=2, **options)
    async with (
        SandboxManager(config) as manager,
        NodeAgent(
            manager, token=TOKEN, name="one", directory=directory, check_seconds=3600
        ) as agent,
    ):
        yield manager, agent
    directory.close()


def on_nodes(redis_url: str, folder: Path) -> AbstractAsyncContextManager[Service]:
    """Serve sandboxes with secrets that the environment of this process has not."""
    environ = {"DIRECTORY": redis_url, "TOKEN": TOKEN}
    return served(folder, policies=POLICIES + CLUSTER, environ=environ)


async def test_sandboxes_have_cells_on_a_node(redis_url: str, tmp_path: Path) -> None:
    async with (
        node(redis_url, **FIT) as (cells, _),
        on_nodes(redis_url, tmp_path) as service,
    ):
        sandbox = await service.create()
        assert cells.active_cells == 1
        output, _ = await sandbox.command("pwd; cat > f <<< text; cat f")
        assert output == b"/home/user\ntext\n"
        data = bytes(range(256)) * 4096
        assert (await sandbox.write("large", data)).status_code == 200
        assert (await sandbox.read("large")).content == data
        assert await sandbox.code(code="x = 40")
        lines = await sandbox.code(code="x + 2")
        assert "42" in str(lines)
        watched = await sandbox.unary(
            "filesystem.Filesystem/CreateWatcher", path="/home/user"
        )
        await sandbox.write("made", b"1")
        events = await sandbox.unary(
            "filesystem.Filesystem/GetWatcherEvents",
            watcherId=watched.json()["watcherId"],
        )
        assert "made" in events.text

        other = await service.create()
        refused = await service.http.post(
            "/v2/sandboxes", json={}, headers=service.key()
        )
        assert refused.status_code == 429
        for ended in (sandbox, other):
            gone = await service.http.delete(
                f"/sandboxes/{ended.id}", headers=service.key()
            )
            assert gone.status_code == 204
        assert cells.active_cells == 0


async def test_one_driver_serves_sandboxes_and_the_host_s_own_tools(
    redis_url: str, tmp_path: Path
) -> None:
    policies = (
        f"[tools]\nbuiltin = ['code']\nmax_sessions = 1\n{POLICIES}{CLUSTER}"
        "[[policies]]\nagent_id = 'c'\nallow = ['run_python']\n"
    )
    environ = {"DIRECTORY": redis_url, "TOKEN": TOKEN}
    async with node(redis_url, **FIT) as (cells, agent):
        async with served(tmp_path, policies=policies, environ=environ) as service:
            sandbox = await service.create()
            code = {"code": "6 * 7"}
            result = await service.host.call("run_python", code, agent_id="c")
            assert (result.status, agent.drivers) == ("ok", 1)
            own = service.host.sandbox
            assert own is not None
            # They are in one account.
            assert own.active_cells == cells.active_cells == 1
            assert (await sandbox.command("echo here"))[0] == b"here\n"


@pytest.mark.parametrize(
    "other",
    [
        {"work_dir": "/work"},
        {"session_idle_seconds": 60.0},
        {"session_lifetime_seconds": 60.0},
    ],
    ids=str,
)
async def test_nodes_with_other_cells_are_refused(
    redis_url: str, tmp_path: Path, other: dict[str, Any]
) -> None:
    async with node(redis_url, **{**FIT, **other}):
        with pytest.raises(ConfigError, match="cells that are no sandboxes") as caught:
            async with on_nodes(redis_url, tmp_path):
                pass
    [name] = other
    assert name in (caught.value.hint or "")
