"""Rows on clusters: nodes in their own processes, beside one machine and Ray.

Null nodes have no cells, so what is measured there is the driver and its links. Ray's
figure is an awaited call of an async actor, which is how programs would be run with
Ray alone.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from baselines.programs import PYTHON
from harness.measure import (
    Contender,
    Missing,
    Row,
    Sample,
    WrongResult,
    against,
    take_turns,
)
from harness.options import Options
from harness.processes import all_settled, descendants

from toolcell.cluster import ClusterSandbox, FixedNodes, new_token
from toolcell.cluster.spi import NodeRecord
from toolcell.core import CellLostError
from toolcell.sandbox import HostCalls, Sandbox, SandboxConfig, SandboxManager

Work = Callable[[], Awaitable[object]]
_NODES = Path(__file__).parents[1] / "baselines" / "cluster_nodes.py"
_TASKS = 64
_BATCH = 1000
_ROUNDS = 6
_SLOTS = 8
_SLEEP = 0.2
_SLEEP_SLOTS = 8
_MANY = 64
_FEW = 4
_MEGABYTES = 100
_CALLS = 50
_ASK = f"""
import time
tools.echo(1)
begun = time.perf_counter()
for n in range({_CALLS}):
    tools.echo(n)
(time.perf_counter() - begun) / {_CALLS} * 1000
"""


class _Nodes:
    """The nodes of one process."""

    def __init__(
        self,
        names: Sequence[str],
        token: str,
        *,
        seconds: float | None,
        **sandbox: object,
    ) -> None:
        asked = {"names": names, "token": token, "seconds": seconds, "sandbox": sandbox}
        self.process = subprocess.Popen(
            [sys.executable, _NODES],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        records = json.loads(self.process.stdout.readline())
        self.records = [NodeRecord(**record) for record in records]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@asynccontextmanager
async def _cluster(
    count: int, *, processes: int = 1, seconds: float | None, **sandbox: object
) -> AsyncIterator[ClusterSandbox]:
    """Yield a driver of so many nodes in so many processes."""
    token = new_token()
    parts = [
        _Nodes(
            [f"node-{number}" for number in range(first, count, processes)],
            token,
            seconds=seconds,
            **sandbox,
        )
        for first in range(processes)
    ]
    try:
        records = [record for part in parts for record in part.records]
        async with ClusterSandbox(FixedNodes(records), token=token) as cluster:
            with anyio.fail_after(30):
                while len(cluster.nodes) < count:
                    await anyio.sleep(0.01)
            yield cluster
    finally:
        for part in parts:
            part.end()


def _cells(slots: int, **limits: int) -> dict[str, Any]:
    """Return the options of a sandbox with real cells."""
    return {
        "backend": "subprocess",
        "python": PYTHON,
        "pool": slots,
        "max_concurrency": slots,
        "limits": {"wall_seconds": 60, **limits},
    }


@contextmanager
def _ray_call() -> Iterator[Work]:
    """Yield an awaited call of an actor of Ray, in an own Ray of this machine."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ["RAY_worker_niceness"] = "0"
    try:
        import ray
    except ImportError:
        raise Missing("the extra cluster-ray is not installed") from None
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=80 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
    )

    class Null:
        async def run(self, code: str) -> str:
            return "ok"

    actor: Any = ray.remote(Null).options(num_cpus=0).remote()

    async def call() -> None:
        if await actor.run.remote("1") != "ok":
            raise WrongResult("Ray answered something else")

    try:
        yield call
    finally:
        ray.shutdown()


def _program(sandbox: Sandbox, code: str = "1") -> Work:
    async def run() -> None:
        result = await sandbox.run(code)
        if result.status != "ok":
            raise WrongResult(f"a program ended as {result.status}")

    return run


async def _rate(work: Work, tasks: int, count: int) -> tuple[float, float]:
    """Do work so many times from some tasks; return times a second, and CPU ms each."""
    left = iter(range(count))
    begun, used = time.perf_counter(), time.process_time()

    async def take() -> None:
        for _ in left:
            await work()

    async with anyio.create_task_group() as group:
        for _ in range(tasks):
            group.start_soon(take)
    spent = time.process_time() - used
    return count / (time.perf_counter() - begun), spent / count * 1000


async def _rates(
    works: dict[str, Work], tasks: int, count: int, rounds: int = _ROUNDS
) -> tuple[list[Sample], list[Sample]]:
    """Measure rates in turns; return times a second, and CPU of this process."""
    rates = [Sample(name=name, unit="/s") for name in works]
    cpu = [Sample(name=name, unit="ms") for name in works]
    for work in works.values():
        await _rate(work, tasks, max(1, count // 10))
    for _ in range(rounds):
        for work, rate, used in zip(works.values(), rates, cpu, strict=True):
            one, other = await _rate(work, tasks, count)
            rate.values.append(one)
            used.values.append(other)
    return rates, cpu


async def null(options: Options) -> list[Row]:
    """An empty run over a link against an awaited call of an actor of Ray."""
    empty: dict[str, Any] = {"seconds": 0.0, "max_concurrency": _TASKS}
    with _ray_call() as call:
        async with _cluster(1, **empty) as one:
            alone = await take_turns(
                [
                    Contender(name="run on a null node", run=_none(_program(one))),
                    Contender(name="call of an actor of Ray", run=_none(call)),
                ],
                options.runs,
            )
        async with _cluster(_FEW, processes=2, **empty) as few:
            works = {
                f"run on {_FEW} null nodes": _program(few),
                "call of an actor of Ray": call,
            }
            rates, cpu = await _rates(works, _TASKS, _BATCH)
    return [
        *against("an empty run, one task", alone, [0.25], "share"),
        *against(f"empty runs from {_TASKS} tasks", rates, [6.0], "rate"),
        *against("driver's CPU time of an empty run", cpu, [0.2], "share"),
    ]


def _none(work: Work) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        await work()

    return run


async def scale(options: Options) -> list[Row]:
    """Runs that sleep, on few and on many null nodes, against what slots could do."""
    rows = []
    cpus = []
    for count in (_FEW, _MANY):
        slots = count * _SLEEP_SLOTS
        async with _cluster(
            count, processes=2, seconds=_SLEEP, max_concurrency=_SLEEP_SLOTS
        ) as cluster:
            works = {f"{count} null nodes": _program(cluster)}
            rates, cpu = await _rates(works, slots, slots * 10, rounds=3)
        ideal = Sample(name="slots / seconds", unit="/s", values=[slots / _SLEEP] * 3)
        work = f"runs of {_SLEEP:g} s on {count} null nodes"
        rows += against(work, [rates[0], ideal], [0.9], "rate")
        cpus.append(cpu[0])
    few, many = cpus
    return [
        *rows,
        *against("driver's CPU time of a run", [many, few], [1.8], "share"),
    ]


async def run(options: Options) -> list[Row]:
    """A prepared cell of a node against one of this machine, one task."""
    config = SandboxConfig(**_cells(_SLOTS))
    async with _cluster(1, seconds=None, **_cells(_SLOTS)) as cluster:
        async with SandboxManager(config) as here:
            works: dict[str, Sandbox] = {
                "run on a node": cluster,
                "run on this machine": here,
            }
            contenders = [
                Contender(name=name, run=_none(_program(box)), settle=all_settled)
                for name, box in works.items()
            ]
            samples = await take_turns(contenders, options.runs)
    return against("a prepared cell of a node, one task", samples, [1.5], "share")


async def busy(options: Options) -> list[Row]:
    """Eight slots on 1, 2 and 4 nodes against eight of this machine."""
    rows = []
    config = SandboxConfig(**_cells(_SLOTS))
    for count, gate in ((1, 0.85), (2, 1.0), (4, 1.0)):
        cells = _cells(_SLOTS // count)
        async with _cluster(count, processes=count, seconds=None, **cells) as cluster:
            async with SandboxManager(config) as here:
                works = {
                    f"{count} nodes": _program(cluster),
                    "this machine": _program(here),
                }
                rates, _ = await _rates(works, _SLOTS, options.runs, rounds=4)
        work = f"cells from {_SLOTS} tasks, {count} nodes"
        rows += against(work, rates, [gate], "rate")
    return rows


async def sleep(options: Options) -> list[Row]:
    """Programs of a second on eight slots of 1, 2 and 4 nodes."""
    rows = []
    for count in (1, 2, 4):
        cells = _cells(_SLOTS // count)
        async with _cluster(count, processes=count, seconds=None, **cells) as cluster:
            program = _program(cluster, "import time; time.sleep(1)")
            rate, _ = await _rate(program, _SLOTS, 3 * _SLOTS)
        ours = Sample(name=f"{count} nodes", unit="/s", values=[rate])
        ideal = Sample(name="slots", unit="/s", values=[float(_SLOTS)])
        work = f"programs of 1 s on {count} nodes"
        rows += against(work, [ours, ideal], [0.9], "rate")
    return rows


async def session(options: Options) -> list[Row]:
    """`x + 1` in a session on a node against one here and three empty runs."""
    config = SandboxConfig(**_cells(1))
    async with (
        _cluster(1, seconds=0.0) as empty,
        _cluster(1, seconds=None, **_cells(1)) as cluster,
        SandboxManager(config) as here,
        cluster.session() as there,
        here.session() as local,
    ):
        await there.run("x = 1")
        await local.run("x = 1")

        async def remote() -> None:
            await there.run("x + 1")

        async def near() -> None:
            await local.run("x + 1")

        far, close, link = await take_turns(
            [
                Contender(name="session on a node", run=remote),
                Contender(name="session of this machine", run=near),
                Contender(name="run on a null node", run=_none(_program(empty))),
            ],
            options.runs,
        )
    bound = Sample(
        name="session here + 3 empty runs",
        values=[
            one + 3 * other
            for one, other in zip(close.values, link.values, strict=True)
        ],
    )
    return against("x + 1 in a session on a node", [far, bound], [1.0], "share")


async def bridge(options: Options) -> list[Row]:
    """A program's call of a function of the driver against a call of Ray."""

    async def answer(name: str, args: list[Any], options: dict[str, Any]) -> Any:
        return {"value": args[0]}

    calls = HostCalls(names=("echo",), handler=answer, max_calls=_CALLS + 1)
    with _ray_call() as call:
        async with _cluster(1, seconds=None, **_cells(1)) as cluster:

            async def ask() -> float:
                value = (await cluster.run(_ASK, calls=calls)).value
                if not isinstance(value, float):
                    raise WrongResult("a program's calls failed")
                return value

            async def ray() -> float:
                begun = time.perf_counter()
                for _ in range(_CALLS):
                    await call()
                return (time.perf_counter() - begun) / _CALLS * 1000

            samples = await take_turns(
                [
                    Contender(name="call from a node", run=ask),
                    Contender(name="call of an actor of Ray", run=ray),
                ],
                max(5, options.runs // 10),
            )
    own = [sample.by_own_clock() for sample in samples]
    return against("a program's call of the driver", own, [1.0], "share")


async def file(options: Options) -> list[Row]:
    """100 MB into a session on a node."""
    data = os.urandom(_MEGABYTES * 2**20)
    cells = _cells(1, disk_mib=4 * _MEGABYTES, memory_mib=1024)
    async with _cluster(1, seconds=None, **cells) as cluster:
        async with cluster.session() as there:

            async def up() -> None:
                await there.write_file("data", data)

            [ours] = await take_turns(
                [Contender(name="session.write_file", run=up, burst=1)],
                max(3, options.runs // 40),
            )
    work = f"{_MEGABYTES} MB into a session on a node"
    return [Row(work=work, ours=ours, compare="absolute", gate=1000.0)]


async def lost(options: Options) -> list[Row]:
    """From the death of a node to its error, and to the end of its cells."""
    reported = Sample(name="CellLostError")
    gone = Sample(name="no process is left")
    for _ in range(3):
        token = new_token()
        nodes = _Nodes(["lost"], token, seconds=None, **_cells(2))
        try:
            async with ClusterSandbox(FixedNodes(nodes.records), token=token) as box:
                async with box.session() as there:
                    await there.run("1")
                    begun = await _kill(nodes)
                    with suppress(CellLostError):
                        await there.run("import time; time.sleep(30)")
                    reported.values.append((time.perf_counter() - begun[0]) * 1000)
                with anyio.fail_after(30):
                    while any(Path(f"/proc/{pid}").exists() for pid in begun[1]):
                        await anyio.sleep(0.002)
                gone.values.append((time.perf_counter() - begun[0]) * 1000)
        finally:
            nodes.end()
    return [
        Row(
            work="a dead node is reported",
            ours=reported,
            compare="absolute",
            gate=1000.0,
        ),
        Row(work="its cells are gone", ours=gone, compare="absolute", gate=2000.0),
    ]


async def _kill(nodes: _Nodes) -> tuple[float, list[int]]:
    """Kill a process of nodes; return when, and the processes below it."""
    below = descendants(nodes.process.pid)
    os.kill(nodes.process.pid, signal.SIGKILL)
    return time.perf_counter(), below


CLUSTER_ROWS = {
    "cluster-null": null,
    "cluster-scale": scale,
    "cluster-run": run,
    "cluster-busy": busy,
    "cluster-sleep": sleep,
    "cluster-session": session,
    "cluster-bridge": bridge,
    "cluster-file": file,
    "cluster-lost": lost,
}
