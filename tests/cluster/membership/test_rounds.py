"""Rounds that each end a part of a Ray cluster while runs are under way.

`TOOLCELL_ROUNDS_SEED` repeats the choices of a run that failed; it prints its seed.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from toolcell.cluster import ClusterSandbox
from toolcell.core import SandboxUnavailableError

from ...support.cluster.load import Load
from ...support.cluster.ray_processes import RayProcesses, ray_with_tables_in_redis

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(1800)]
SEED = int(os.environ.get("TOOLCELL_ROUNDS_SEED", "0")) or random.randrange(1, 10**9)
SLOTS = 3
KINDS = ("node", "keeper", "raylet", "head", "hung")


@pytest.fixture
def ray(tmp_path: Path, free_tcp_port: int) -> Iterator[RayProcesses]:
    """A Ray cluster whose head has its tables in Redis, so that it can come back."""
    with ray_with_tables_in_redis(tmp_path, free_tcp_port) as started:
        yield started


class Victims:
    """Ends a part of Ray; where Ray starts no other one in its place, this does.

    Args:
        ray: The cluster.
        chance: Chooses.
    """

    def __init__(self, ray: RayProcesses, chance: random.Random) -> None:
        self._ray = ray
        self._chance = chance
        self.machines: list[str] = []

    async def add(self) -> None:
        self.machines.append(await self._ray.ask("add", slots=SLOTS))

    async def end_one(self, kind: str) -> None:
        await getattr(self, f"_{kind}")()

    async def _node(self) -> None:
        self._kill("NodeActor")

    async def _keeper(self) -> None:
        self._kill("Keeper")

    def _kill(self, kind: str) -> None:
        # The last one may not be back yet.
        if found := self._ray.actors(kind):
            os.kill(self._chance.choice(found), signal.SIGKILL)

    async def _raylet(self) -> None:
        number = self._chance.choice(self.machines)
        self.machines.remove(number)
        await self._ray.ask("kill", process="raylet", number=number)
        await self.add()

    async def _head(self) -> None:
        await self._ray.ask("kill", process="gcs_server")
        await anyio.sleep(self._chance.random())
        await self._ray.ask("head")

    async def _hung(self) -> None:
        """Stop a node until it was given up."""
        if found := self._ray.actors("NodeActor"):
            pid = self._chance.choice(found)
            os.kill(pid, signal.SIGSTOP)
            await anyio.sleep(self._chance.random() * 4)
            os.kill(pid, signal.SIGCONT)


@pytest.mark.promise("cluster-12")
@pytest.mark.parametrize(
    "rounds", [len(KINDS), pytest.param(40, marks=pytest.mark.full)]
)
async def test_nothing_hangs_whatever_of_ray_is_ended(
    ray: RayProcesses, rounds: int
) -> None:
    print(f"TOOLCELL_ROUNDS_SEED={SEED}")
    chance = random.Random(SEED)
    victims = Victims(ray, chance)
    for _ in range(2):
        await victims.add()
    token = await ray.ask("start")
    kinds = [*KINDS] * (rounds // len(KINDS))
    chance.shuffle(kinds)
    async with ClusterSandbox(
        ray, token=token, wait_seconds=30.0, lost_seconds=2.0
    ) as sandbox:
        load = Load(sandbox)
        async with anyio.create_task_group() as tasks:
            for kind in ("run", "run", "session", "stream"):
                tasks.start_soon(load.go_on, kind)
            for kind in kinds:
                before = load.ends["ok"]
                await victims.end_one(kind)
                # What is left does work again.
                with anyio.fail_after(180):
                    while load.ends["ok"] < before + 6:
                        await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        print(kinds, dict(load.ends))
        assert load.ends.keys() <= {"ok", "node_lost", "no_nodes"}
        assert sandbox.active_cells == 0
        # All machines are nodes again.
        with anyio.fail_after(180):
            while len(await nodes_of(ray)) != 2 or len(sandbox.nodes) != 2:
                await anyio.sleep(0.1)


async def nodes_of(ray: RayProcesses) -> list[str]:
    try:
        return [node.name for node in await ray.nodes()]
    except SandboxUnavailableError:
        # The keeper is not back yet.
        return []
