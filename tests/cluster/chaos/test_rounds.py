"""Rounds that each end something at random while runs are under way.

`TOOLCELL_ROUNDS_SEED` repeats the choices of a run that failed; it prints its seed.
"""

from __future__ import annotations

import os
import random
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from toolcell.cluster import ClusterSandbox
from toolcell.cluster.driver import nodes as nodes_module

from ...support.cells.leak_check import at_rest
from ...support.cluster.load import Load
from ...support.cluster.processes import ClusterProcesses, NodeProcess
from ...support.guard.redis_server import RedisServer
from ...support.polling import until
from ...support.process_tree import below

NAMES = ("one", "two")
SLOTS = 3
ENDLESS = "import time\nprint('started', flush=True)\ntime.sleep(600)"
SEED = int(os.environ.get("TOOLCELL_ROUNDS_SEED", "0")) or random.randrange(1, 10**9)
pytestmark = pytest.mark.anyio


class Victims:
    """Ends a part of a cluster, and puts another one in its place.

    Args:
        processes: The cluster.
        server: The Redis of its directory.
        sandbox: The driver whose links are cut.
        chance: Chooses.
    """

    def __init__(
        self,
        processes: ClusterProcesses,
        server: RedisServer,
        sandbox: ClusterSandbox,
        chance: random.Random,
    ) -> None:
        self._processes = processes
        self._server = server
        self._sandbox = sandbox
        self._chance = chance
        self.nodes: dict[str, NodeProcess] = {}
        self.idle = 0
        """Processes below the nodes while they run nothing."""

    async def add(self, name: str) -> None:
        """Start a node in the place of one that is gone."""
        self.nodes[name] = await to_thread.run_sync(
            lambda: self._processes.node(name, lost_seconds=3.0, max_concurrency=SLOTS)
        )

    async def end_one(self) -> str:
        """End one, and begin it anew; return its kind."""
        kinds = ("killed", "hung", "directory", "driver", "link", "link", "link")
        kind = self._chance.choice(kinds)
        await getattr(self, f"_{kind}")()
        return kind

    async def _killed(self) -> None:
        name = self._chance.choice(NAMES)
        self.nodes[name].process.kill()
        await self.add(name)

    async def _hung(self) -> None:
        name = self._chance.choice(NAMES)
        old = self.nodes[name].process
        old.send_signal(signal.SIGSTOP)
        await self.add(name)
        await anyio.sleep(self._chance.random() * 2)
        old.kill()

    async def _directory(self) -> None:
        self._server.kill()
        await anyio.sleep(self._chance.random())
        await to_thread.run_sync(self._server.start)

    async def _driver(self) -> None:
        driver = self._processes.driver(ENDLESS)
        assert driver.stdout is not None
        with anyio.move_on_after(self._chance.random() * 4):
            await to_thread.run_sync(driver.stdout.readline, abandon_on_cancel=True)
        driver.kill()
        await to_thread.run_sync(driver.wait)

    async def _link(self) -> None:
        if opened := self._sandbox._nodes.open:
            cut(self._chance.choice(opened).record.port)


def cut(port: int) -> None:
    """Shut the connections of this process that lead to a port."""
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if not os.readlink(path).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(path.name))) as found:
                if found.family == socket.AF_INET and found.getpeername()[1] == port:
                    found.shutdown(socket.SHUT_RDWR)


@asynccontextmanager
async def two_nodes(
    processes: ClusterProcesses, server: RedisServer, chance: random.Random
) -> AsyncIterator[tuple[ClusterSandbox, Victims]]:
    """Yield a driver of two nodes that gives them up soon, and what can be ended."""
    directory = processes.directory()
    first = processes.node("one", lost_seconds=3.0, max_concurrency=SLOTS)
    async with ClusterSandbox(
        directory, token=processes.token, wait_seconds=20.0, lost_seconds=2.0
    ) as sandbox:
        made = Victims(processes, server, sandbox, chance)
        made.nodes["one"] = first
        await made.add("two")
        for node in made.nodes.values():
            made.idle += (await at_rest(node.process.pid)).processes
        yield sandbox, made
    directory.close()


@pytest.mark.promise("cluster-12")
@pytest.mark.parametrize(
    "rounds",
    [
        10,
        pytest.param(200, marks=[pytest.mark.full, pytest.mark.timeout(1800)]),
    ],
)
async def test_nothing_hangs_whatever_is_ended(
    processes: ClusterProcesses,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    rounds: int,
) -> None:
    print(f"TOOLCELL_ROUNDS_SEED={SEED}")
    monkeypatch.setattr(nodes_module, "_AGAIN_SECONDS", 0.2)
    monkeypatch.setattr(nodes_module, "_LOOK_SECONDS", 0.2)
    ended: Counter[str] = Counter()
    async with two_nodes(processes, redis_server, random.Random(SEED)) as made:
        sandbox, victims = made
        load = Load(sandbox)
        async with anyio.create_task_group() as tasks:
            for kind in ("run", "run", "run", "session", "stream", "stream"):
                tasks.start_soon(load.go_on, kind)
            for _ in range(rounds):
                before = load.ends["ok"]
                ended[await victims.end_one()] += 1
                # What is left does work again.
                with anyio.fail_after(120):
                    while load.ends["ok"] < before + 6:
                        await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()

        print(dict(ended), dict(load.ends))
        assert load.ends.keys() <= {"ok", "node_lost", "no_nodes"}
        assert sandbox.active_cells == 0
        await until(lambda: {*NAMES} == {*sandbox.nodes})
        # Neither this driver nor those that were killed have cells left.
        pids = [node.process.pid for node in victims.nodes.values()]
        await until(lambda: len(below(*pids)) == victims.idle)
