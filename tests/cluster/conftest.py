"""A cluster of two nodes, each in a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from toolcell.cluster import ClusterSandbox

from ..support.cluster.patience import LONG, givers
from ..support.cluster.processes import ClusterProcesses, NodeProcess
from ..support.guard.redis_server import RedisServer
from ..support.polling import until
from ..support.web.ports import free_port


@pytest.fixture
def free_tcp_port() -> int:
    """A port that no connection takes meanwhile; anyio's may be."""
    return free_port()


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), keeps=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def processes(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterProcesses]:
    started = ClusterProcesses(redis_server.url, tmp_path_factory.mktemp("nodes"))
    yield started
    started.end()


@pytest.fixture(scope="module")
def nodes(processes: ClusterProcesses) -> dict[str, NodeProcess]:
    """Two nodes of four slots each."""
    limits = {"disk_mib": 256, "wall_seconds": 300}
    return {
        name: processes.node(name, max_concurrency=4, limits=limits)
        for name in ("one", "two")
    }


@pytest.fixture
async def cluster(
    processes: ClusterProcesses, nodes: dict[str, NodeProcess]
) -> AsyncIterator[ClusterSandbox]:
    """A driver that has links to both nodes."""
    directory = processes.directory()
    async with ClusterSandbox(
        directory, token=processes.token, wait_seconds=LONG
    ) as sandbox:
        await until(lambda: givers(sandbox) == {"one", "two"})
        yield sandbox
    directory.close()
