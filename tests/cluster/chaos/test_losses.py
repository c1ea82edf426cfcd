"""Nodes, drivers and directories that go away."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from toolcell.cluster import ClusterSandbox
from toolcell.core import CellLostError, SandboxUnavailableError
from toolcell.sandbox import HostCalls

from ...support.cells.leak_check import at_rest
from ...support.cells.leftovers import folders_of
from ...support.cluster.patience import LONG, givers, wait_briefly
from ...support.cluster.processes import ClusterProcesses, NodeProcess
from ...support.guard.redis_server import RedisServer
from ...support.polling import until
from ...support.process_tree import arguments, below, look, runs

pytestmark = pytest.mark.anyio
ENDLESS = "import time\nprint('started', flush=True)\ntime.sleep(600)"


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of one test, which may kill it."""
    server = RedisServer(tmp_path, keeps=False)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def processes(redis_server: RedisServer, tmp_path: Path) -> Iterator[ClusterProcesses]:
    started = ClusterProcesses(redis_server.url, tmp_path)
    yield started
    started.end()


@pytest.fixture
async def sandbox(processes: ClusterProcesses) -> AsyncIterator[ClusterSandbox]:
    """A driver, with a node `one` of two slots."""
    processes.node("one", max_concurrency=2)
    directory = processes.directory()
    async with ClusterSandbox(
        directory, token=processes.token, wait_seconds=LONG
    ) as sandbox:
        yield sandbox
    directory.close()


@pytest.mark.promise("cluster-04", "cluster-07", "cluster-08")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_lost_node_costs_its_own_runs_alone(
    processes: ClusterProcesses, sandbox: ClusterSandbox, how: signal.Signals
) -> None:
    two = processes.node("two", max_concurrency=2)
    await until(lambda: givers(sandbox) == {"one", "two"})
    ended: dict[str, CellLostError] = {}
    up = {"one": anyio.Event(), "two": anyio.Event()}
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        sessions = {}
        for _ in range(2):
            session = await stack.enter_async_context(sandbox.session())
            sessions[session.node] = session
        assert set(sessions) == {"one", "two"}

        async def run(node: str) -> None:
            try:
                show = up[node]
                await sessions[node].run(ENDLESS, on_output=lambda *_: show.set())
            except CellLostError as error:
                ended[node] = error

        for node in sessions:
            tasks.start_soon(run, node)
            await up[node].wait()
        two.process.send_signal(how)
        await until(lambda: ended != {})

        assert ended.keys() == {"two"}
        assert ended["two"].details == {"reason": "node_lost", "node": "two"}
        assert not sessions["two"].alive
        with pytest.raises(CellLostError):
            await sessions["two"].run("1")
        assert sandbox.nodes == ("one",)
        # The other node's run goes on, and new work goes there.
        async with sandbox.session() as session:
            assert session.node == "one"
        tasks.cancel_scope.cancel()


async def test_a_node_that_is_back_is_used_again(
    processes: ClusterProcesses, sandbox: ClusterSandbox
) -> None:
    two = processes.node("two", max_concurrency=2)
    await until(lambda: givers(sandbox) == {"one", "two"})
    two.process.kill()
    await until(lambda: sandbox.nodes == ("one",))

    processes.node("two", max_concurrency=2)

    await until(lambda: givers(sandbox) == {"one", "two"})
    assert (await sandbox.run("6 * 7")).value == 42


@pytest.mark.promise("cluster-12", "cluster-15")
async def test_without_a_node_runs_end_and_say_so(
    redis_server: RedisServer, processes: ClusterProcesses
) -> None:
    node = processes.node("one", max_concurrency=1)
    directory = processes.directory()
    async with ClusterSandbox(
        directory, token=processes.token, wait_seconds=LONG
    ) as sandbox:
        wait_briefly(sandbox)
        # The directory is away; what is open goes on.
        redis_server.kill()
        assert (await sandbox.run("6 * 7")).value == 42
        node.process.kill()
        await until(lambda: sandbox.nodes == ())
        with anyio.fail_after(60), pytest.raises(SandboxUnavailableError) as caught:
            await sandbox.run("1")
        assert caught.value.details["reason"] == "no_nodes"
    with anyio.fail_after(60), pytest.raises(SandboxUnavailableError) as caught:
        async with ClusterSandbox(directory, token=processes.token, wait_seconds=0.5):
            pass
    assert caught.value.details["reason"] == "no_nodes"
    directory.close()


@pytest.mark.promise("cluster-12")
async def test_what_waits_when_the_last_node_goes_ends(
    processes: ClusterProcesses,
) -> None:
    node = processes.node("one", max_concurrency=1)
    directory = processes.directory()
    failed: list[SandboxUnavailableError] = []
    async with ClusterSandbox(
        directory, token=processes.token, wait_seconds=LONG
    ) as sandbox:
        wait_briefly(sandbox)
        async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
            await stack.enter_async_context(sandbox.session())

            async def run() -> None:
                with pytest.raises(SandboxUnavailableError) as caught:
                    await sandbox.run("1")
                failed.append(caught.value)

            tasks.start_soon(run)
            await until(lambda: sandbox.pool_stats().waiting == 1)
            node.process.kill()
    assert [error.details["reason"] for error in failed] == ["no_nodes"]
    directory.close()


@pytest.mark.promise("cluster-09")
async def test_a_dead_driver_leaves_nothing(processes: ClusterProcesses) -> None:
    node = processes.node("two", max_concurrency=4)
    idle = (await at_rest(node.process.pid)).processes
    drivers = [processes.driver(ENDLESS) for _ in range(2)]
    for driver in drivers:
        assert driver.stdout is not None
        assert await anyio.to_thread.run_sync(driver.stdout.readline) == "started\n"

    assert len(below(node.process.pid)) > idle
    for driver in drivers:
        os.kill(driver.pid, signal.SIGKILL)

    await until(lambda: len(below(node.process.pid)) == idle)
    directory = processes.directory()
    async with ClusterSandbox(
        directory, token=processes.token, wait_seconds=LONG
    ) as sandbox:
        assert (await sandbox.run("6 * 7")).value == 42
    directory.close()


@pytest.mark.promise("cluster-09")
async def test_a_dead_driver_costs_others_nothing(processes: ClusterProcesses) -> None:
    limits = {"wall_seconds": 600}
    node = processes.node(
        "two", lost_seconds=LONG, max_concurrency=4, pool=2, limits=limits
    )
    sleeps = "import subprocess\nsubprocess.Popen(['sleep', '{}'])\n"
    driver = processes.driver(sleeps.format(611) + ENDLESS)
    assert driver.stdout is not None
    assert await anyio.to_thread.run_sync(driver.stdout.readline) == "started\n"
    directory = processes.directory()
    async with ClusterSandbox(
        directory, token=processes.token, wait_seconds=LONG, lost_seconds=LONG
    ) as sandbox:
        async with sandbox.session() as session, anyio.create_task_group() as tasks:
            assert (await session.run(sleeps.format(622) + "x = 42")).ok
            going, over = anyio.Event(), anyio.Event()
            ended: list[object] = []

            async def wait(*_: object) -> dict[str, object]:
                going.set()
                await over.wait()
                return {"value": None}

            async def run() -> None:
                calls = HostCalls(names=("wait",), handler=wait)
                ended.append((await sandbox.run("tools.wait()\n7", calls=calls)).value)

            tasks.start_soon(run)
            await going.wait()
            # Its caller goes on before a new program has its arguments.
            await until(lambda: line_of(node, "611") != {} != line_of(node, "622"))
            of_the_dead, of_other = line_of(node, "611"), line_of(node, "622")
            # The launcher is of both; spare cells of the pool are of neither.
            own = {each: at for each, at in of_the_dead.items() if each not in of_other}
            assert own

            os.kill(driver.pid, signal.SIGKILL)

            await until(lambda: not any(runs(*each) for each in own.items()))
            assert ended == []
            assert all(runs(*each) for each in of_other.items())
            assert (await session.run("x")).value == 42
            over.set()
        assert ended == [7]
    directory.close()


def line_of(node: NodeProcess, seconds: str) -> dict[int, str]:
    """Return a `sleep` of a node's cell, and the processes between it and the node.

    They are empty while there is no such `sleep`.
    """
    found = below(node.process.pid)
    asked = f"sleep\0{seconds}\0".encode()
    pid = next((pid for pid in found if arguments(pid) == asked), 0)
    line = {}
    while pid in found:
        line[pid] = found[pid]
        process = look(pid)
        assert process is not None
        pid = process.parent
    return line


@pytest.mark.promise("C12", "cluster-10")
async def test_a_stopped_driver_leaves_nothing(processes: ClusterProcesses) -> None:
    node = processes.node("two", max_concurrency=4)
    idle = (await at_rest(node.process.pid)).processes
    driver = processes.driver(ENDLESS, uploads=True)
    assert driver.stdout is not None
    assert await anyio.to_thread.run_sync(driver.stdout.readline) == "started\n"

    assert len(below(node.process.pid)) > idle
    assert len(folders_of(node.owner)) == 1
    # Its link stays open, and nothing comes over it any more.
    driver.send_signal(signal.SIGSTOP)

    await until(lambda: len(below(node.process.pid)) == idle)
    await until(lambda: folders_of(node.owner) == [])
