"""What a node that was killed leaves on its machine: nothing, for long."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from toolcell.cluster import ClusterSandbox
from toolcell.core import CellLostError
from toolcell.sandbox import Sandbox
from toolcell.sandbox.machine import host_cgroups

from ...conftest import missing
from ...support.cells.leftovers import folders_of, groups_of
from ...support.cluster.patience import givers
from ...support.cluster.processes import ClusterProcesses
from ...support.guard.redis_server import RedisServer
from ...support.polling import until
from ...support.process_tree import below, runs

pytestmark = pytest.mark.anyio


@pytest.fixture
def processes(redis_server: RedisServer, tmp_path: Path) -> Iterator[ClusterProcesses]:
    started = ClusterProcesses(redis_server.url, tmp_path)
    yield started
    started.end()


async def use(sandbox: Sandbox, ready: anyio.Event) -> None:
    """Leave processes in a cell, and a program that runs until it is lost."""
    code = "import subprocess\nsubprocess.Popen(['sleep', '600'])\nprint(1, flush=True)"
    async with sandbox.session() as session:
        await session.run(code)
        await session.exec("sleep 600")
        with pytest.raises(CellLostError):
            await session.run(
                f"{code}\nimport time\ntime.sleep(600)",
                on_output=lambda *_: ready.set(),
            )


@pytest.mark.promise("cluster-05")
async def test_no_process_and_no_group_of_a_killed_node_is_left(
    processes: ClusterProcesses,
) -> None:
    try:
        host_cgroups.parents()
    except OSError as error:
        missing(f"cgroups cannot be made here: {error}")
    node = processes.node("one", max_concurrency=4, pool=2)
    directory = processes.directory()
    async with ClusterSandbox(directory, token=processes.token) as sandbox:
        async with anyio.create_task_group() as tasks:
            ready = anyio.Event()
            tasks.start_soon(use, sandbox, ready)
            await ready.wait()
            name, left = node.owner, below(node.process.pid)
            assert len(left) > 4
            assert groups_of(name)

            os.kill(node.process.pid, signal.SIGKILL)

            await until(
                lambda: (
                    not groups_of(name)
                    and not any(runs(*each) for each in left.items())
                )
            )
    assert folders_of(name) == []
    directory.close()


@pytest.mark.promise("C12", "cluster-05")
async def test_files_on_their_way_to_a_killed_node_go_with_the_next_one(
    processes: ClusterProcesses,
) -> None:
    nodes = {name: processes.node(name, max_concurrency=2) for name in ("one", "two")}
    names = {name: node.owner for name, node in nodes.items()}
    directory = processes.directory()
    async with ClusterSandbox(directory, token=processes.token) as sandbox:
        await until(lambda: givers(sandbox) == {"one", "two"})
        async with AsyncExitStack() as stack:
            for _ in nodes:
                session = await stack.enter_async_context(sandbox.session())
                fields = session._remote.fields("upload", path="")
                exchange = session._link.exchange(fields)
                await stack.enter_async_context(exchange)
                await exchange.send({"offset": 0}, b"private")
                await exchange.receive()
                assert len(folders_of(names[session.node])) == 1

            os.kill(nodes["one"].process.pid, signal.SIGKILL)
            nodes["one"].process.wait()
            processes.node("three", max_concurrency=2)

            assert folders_of(names["one"]) == []
            assert len(folders_of(names["two"])) == 1
    await until(lambda: folders_of(names["two"]) == [])
    directory.close()
