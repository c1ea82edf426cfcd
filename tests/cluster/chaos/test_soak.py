"""Hours of runs and kills let nothing grow: `TOOLCELL_SOAK_MINUTES` tells how many."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from toolcell.cluster import ClusterSandbox
from toolcell.core import CellLostError, SandboxUnavailableError
from toolcell.sandbox import Limits

from ...support.cluster.patience import givers
from ...support.cluster.ray_processes import ENVIRON, RayProcesses
from ...support.polling import until
from ...support.process_tree import below, resident_bytes

MINUTES = int(os.environ.get("TOOLCELL_SOAK_MINUTES", "30"))
RATE = 50
SLOTS = 8
MAX_WAITING = 4 * SLOTS
GROWTH_MB = 16
SHORT = Limits(wall_seconds=10)
"""A program that hangs in its cell is told from an answer that does not come."""

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.full,
    pytest.mark.timeout(MINUTES * 60 + 300),
]
ENDLESS = "import time\nprint('started', flush=True)\ntime.sleep(6000)"


@pytest.fixture
def ray(tmp_path: Path) -> Iterator[RayProcesses]:
    started = RayProcesses(tmp_path / "log", ENVIRON)
    yield started
    started.end()


class Soak:
    """Runs at an even rate, and what became of them.

    Args:
        sandbox: The driver.
    """

    def __init__(self, sandbox: ClusterSandbox) -> None:
        self._sandbox = sandbox
        self._running = 0
        self.ends: Counter[str] = Counter()

    async def run_for(self, seconds: float) -> None:
        """Begin `RATE` runs a second; return when all have ended.

        A machine that is too slow for that gets fewer: else runs would wait for each
        other as long as for an answer that does not come.
        """
        start = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for number in range(int(seconds * RATE)):
                await anyio.sleep_until(start + number / RATE)
                if self._sandbox.pool_stats().waiting < MAX_WAITING:
                    tasks.start_soon(self._one, number)

    async def _one(self, number: int) -> None:
        before = self.ends.total()
        try:
            with anyio.fail_after(30):
                if number % 10:
                    code = f"{number} + 1"
                    result = await self._sandbox.run(code, limits=SHORT)
                else:
                    async with self._sandbox.session() as session:
                        await session.run(f"x = {number}")
                        result = await session.run("x + 1", limits=SHORT)
            assert result.value == number + 1, result
            self.ends["ok"] += 1
        except CellLostError as error:
            self.ends[str(error.details["reason"])] += 1
        except SandboxUnavailableError as error:
            self.ends[str(error.details["reason"])] += 1
        except TimeoutError:
            waiting = self._sandbox.pool_stats().waiting
            raise AssertionError(
                f"run {number} has no answer; {self.ends.total() - before} others had "
                f"one meanwhile, {waiting} wait, {self._sandbox.active_cells} have a "
                f"place, the machine's load is {os.getloadavg()[0]:.1f}"
            ) from None


class Victims:
    """What is killed: one of two nodes, the keeper, and another driver.

    Args:
        ray: The cluster.
        survivor: The process of the node that is left alone.
    """

    def __init__(self, ray: RayProcesses, survivor: int) -> None:
        self._ray = ray
        self._survivor = survivor
        self._chance = random.Random(51)
        self.killed: Counter[str] = Counter()

    async def kill_one(self) -> None:
        """Kill one; return when its successor is there."""
        kind = self._chance.choice(["NodeActor", "Keeper", "driver"])
        self.killed[kind] += 1
        if kind == "driver":
            await self._end_a_driver()
            return
        before = self._ray.actors(kind)
        [victim] = [pid for pid in before if pid != self._survivor]
        os.kill(victim, signal.SIGKILL)
        now: list[int] = []
        with anyio.fail_after(60):
            while victim in now or len(now) != len(before):
                await anyio.sleep(0.5)
                # A look at all processes would hold up the runs.
                now = await to_thread.run_sync(self._ray.actors, kind)

    async def _end_a_driver(self) -> None:
        driver = self._ray.driver(ENDLESS, {**os.environ, **ENVIRON})
        assert driver.stdout is not None
        line = await to_thread.run_sync(driver.stdout.readline)
        driver.kill()
        driver.communicate()
        assert line == "started\n"


def held(ray: RayProcesses, survivor: int) -> dict[str, float]:
    """Return what the driver, the node that is left alone, and all of Ray hold."""
    driver = os.getpid()
    return {
        "driver files": len(os.listdir("/proc/self/fd")),
        "driver MB": resident_bytes(driver) / 2**20,
        "node files": len(os.listdir(f"/proc/{survivor}/fd")),
        "node MB": resident_bytes(survivor) / 2**20,
        "node processes": len(below(survivor)),
        "nodes": len(ray.actors("NodeActor")),
        "keepers": len(ray.actors("Keeper")),
    }


@pytest.mark.promise("cluster-51")
async def test_runs_and_kills_let_nothing_grow(ray: RayProcesses) -> None:
    for _ in range(2):
        await ray.ask("add", slots=SLOTS)
    token = await ray.ask("start", lost_seconds=10.0, pool=4)
    with anyio.fail_after(60):
        while len(await ray.nodes()) != 2:
            await anyio.sleep(0.1)
    survivor, _ = ray.actors("NodeActor")
    victims = Victims(ray, survivor)
    looks: list[dict[str, float]] = []
    async with ClusterSandbox(ray, token=token) as sandbox:
        soak = Soak(sandbox)
        for minute in range(MINUTES):
            started = anyio.current_time()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(soak.run_for, 50)
                await anyio.sleep(20)
                await victims.kill_one()
            # What was killed is back, and nothing runs.
            await until(lambda: len(givers(sandbox)) == 2)
            await anyio.sleep(2)
            looks.append(held(ray, survivor))
            print(minute, dict(soak.ends), dict(victims.killed), looks[-1], flush=True)
            await anyio.sleep_until(started + 60)

    # The first minutes fill caches.
    first = looks[min(3, MINUTES // 3)]
    last = looks[-1]
    for name, value in last.items():
        bound = GROWTH_MB if name.endswith("MB") else 0
        assert value - first[name] <= bound, name
    assert soak.ends["ok"] + soak.ends["node_lost"] == soak.ends.total()
    assert soak.ends["node_lost"] <= victims.killed["NodeActor"] * 2 * SLOTS
