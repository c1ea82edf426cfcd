"""The head of Ray goes away and comes back, with its tables in a Redis of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from toolcell.cluster import ClusterSandbox

from ...support.cluster.patience import givers
from ...support.cluster.ray_processes import (
    ENVIRON,
    RayProcesses,
    ray_with_tables_in_redis,
)
from ...support.polling import until

pytestmark = [pytest.mark.anyio, pytest.mark.full, pytest.mark.timeout(300)]
AWAY_SECONDS = 90
"""Ray's own patience is 60."""

ENDLESS = "import time\nprint('started', flush=True)\ntime.sleep(600)"


@pytest.fixture
def ray(tmp_path: Path, free_tcp_port: int) -> Iterator[RayProcesses]:
    """A Ray cluster whose head has its tables in Redis."""
    with ray_with_tables_in_redis(tmp_path, free_tcp_port) as started:
        yield started


@pytest.mark.promise("cluster-13", "cluster-14")
async def test_runs_go_on_without_the_head_and_new_machines_are_seen_once_it_is_back(
    ray: RayProcesses,
) -> None:
    await ray.ask("add", slots=2)
    token = await ray.ask("start", limits={"wall_seconds": 300})
    environ = {**os.environ, **ENVIRON}
    # The driver's own, as that of a user's process.
    del environ["RAY_gcs_rpc_server_reconnect_timeout_s"]
    driver = ray.driver(ENDLESS, environ)
    try:
        assert driver.stdout is not None
        line = await to_thread.run_sync(driver.stdout.readline)
        assert line == "started\n"
        async with (
            ClusterSandbox(ray, token=token, wait_seconds=30) as sandbox,
            sandbox.session() as session,
        ):
            await session.run("x = 0")
            await ray.ask("kill", process="gcs_server")
            for number in range(1, AWAY_SECONDS + 1):
                await anyio.sleep(1)
                assert (await session.run("x += 1; x")).value == number
            assert driver.poll() is None

            await ray.ask("head")
            await ray.ask("add", slots=2)

            await until(lambda: len(givers(sandbox)) == 2)
            async with sandbox.session() as other:
                assert other.node != session.node
                assert (await other.run("6 * 7")).value == 42
            assert (await session.run("x")).value == AWAY_SECONDS
            assert driver.poll() is None
    finally:
        driver.kill()
        driver.communicate()
