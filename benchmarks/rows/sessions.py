"""Sessions: state, forks, files, idle memory and several callers at once."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from baselines import programs
from baselines.programs import PYTHON
from harness import processes
from harness.measure import (
    QUICK_BURST,
    SLOW_BURST,
    Contender,
    Row,
    Sample,
    WrongResult,
    against,
    take_turns,
)
from harness.options import Options

from toolcell.sandbox import Limits, SandboxConfig, SandboxManager

_MEGABYTE = 1024 * 1024
_STATE_MB = 200
_FILE_MB = 100
_SESSIONS = 100
_CALLERS = 8
_DOCKER_POOL = 4
_POLL_SECONDS = 0.01
_CLOSING_SECONDS = 60.0


def _config(limits: Limits | None = None, pool: int = 0) -> SandboxConfig:
    return SandboxConfig(
        backend="subprocess",
        python=PYTHON,
        limits=limits or Limits(),
        pool=pool,
        max_concurrency=2 * _SESSIONS,
    )


def _docker_config(options: Options, runtime: str, pool: int = 0) -> SandboxConfig:
    programs.needs_docker(options.image, runtime)
    return SandboxConfig(
        backend="docker", image=options.image, runtime=runtime, pool=pool
    )


def _reruns(run: Callable[[], Awaitable[None]]) -> Contender:
    return Contender(name="session.run", run=run, burst=QUICK_BURST)


async def rerun(options: Options) -> list[Row]:
    """`x + 1` in a session whose interpreter is there already."""
    async with SandboxManager(_config()) as sandbox, sandbox.session() as session:
        await session.run("x = 41")

        async def ours() -> None:
            if (await session.run("x + 1")).value != 42:
                raise WrongResult("x + 1 is not 42")

        contenders = [_reruns(ours), programs.plain()]
        samples = await take_turns(contenders, options.runs)
    return against("subprocess, x + 1 in a session", samples, [32])


async def docker_rerun(options: Options) -> list[Row]:
    """The same in a container against a new process in a running container."""
    config = _docker_config(options, "runc")
    async with SandboxManager(config) as sandbox, sandbox.session() as session:
        await session.run("x = 41")

        async def ours() -> None:
            if (await session.run("x + 1")).value != 42:
                raise WrongResult("x + 1 is not 42")

        with programs.docker_exec(options.image, "runc") as docker_exec:
            contenders = [_reruns(ours), docker_exec]
            samples = await take_turns(contenders, options.runs)
    return against("docker/runc, x + 1 in a session", samples, [37])


async def docker_pooled(runtime: str, gate: float, options: Options) -> list[Row]:
    """A never-used container from a full pool, destroyed in the background."""
    config = _docker_config(options, runtime, pool=_DOCKER_POOL)
    async with SandboxManager(config) as sandbox:

        async def ours() -> None:
            if (await sandbox.run("print(1)")).stdout != "1\n":
                raise WrongResult("print(1) printed something else")

        async def full() -> None:
            while sandbox.pool_stats().ready < _DOCKER_POOL:
                await anyio.sleep(0.01)
            await processes.containers_settled(_DOCKER_POOL)

        contenders = [
            Contender(name="sandbox.run", run=ours, settle=full, burst=SLOW_BURST),
            programs.docker_run(options.image, runtime),
        ]
        samples = await take_turns(contenders, options.runs)
    return against(f"docker/{runtime}, fresh pooled cell", samples, [gate])


async def fork(options: Options) -> list[Row]:
    """A fork of 200 MB of live state against copying those bytes."""
    sample = Sample(name="session.fork")
    limits = Limits(memory_mib=1024, wall_seconds=60)
    async with SandboxManager(_config(limits)) as sandbox, sandbox.session() as session:
        await session.run(f"state = bytearray(b'x') * {_STATE_MB * _MEGABYTE}")
        for _ in range(max(1, options.runs // 10)):
            started = time.perf_counter()
            branch = await session.fork()
            sample.values.append((time.perf_counter() - started) * 1000)
            await branch.aclose()
    copied = Sample(name="copying 200 MB")
    state = bytearray(b"x") * (_STATE_MB * _MEGABYTE)
    for _ in range(max(1, options.runs // 20)):
        started = time.perf_counter()
        bytes(state)
        copied.values.append((time.perf_counter() - started) * 1000)
    work = "subprocess, fork with 200 MB of state"
    bound = Row(work=work, ours=sample, compare="absolute", gate=10)
    return [*against(work, [sample, copied], [None]), bound]


async def files(options: Options) -> list[Row]:
    """100 MB into a session and out again against a copy on the host's disk."""
    ours = Sample(name="write_file + read_file", unit="MB/s")
    theirs = Sample(name="write + read of a host file", unit="MB/s")
    data = os.urandom(_FILE_MB * _MEGABYTE)
    config = _config(Limits(disk_mib=2 * _FILE_MB, memory_mib=1024))
    async with SandboxManager(config) as sandbox, sandbox.session() as session:
        with TemporaryDirectory() as folder:
            for _ in range(max(1, options.runs // 40)):
                started = time.perf_counter()
                await session.write_file("data", data)
                if len(await session.read_file("data")) != len(data):
                    raise WrongResult("bytes were lost")
                ours.values.append(_rate(started))
                started = time.perf_counter()
                path = Path(folder, "data")
                path.write_bytes(data)
                path.read_bytes()
                theirs.values.append(_rate(started))
    return against("subprocess, 100 MB in and out", [ours, theirs], [None], "rate")


def _rate(started: float) -> float:
    return 2 * _FILE_MB / (time.perf_counter() - started)


async def idle_sessions(options: Options) -> list[Row]:
    """The cost of 100 open sessions that nobody uses."""
    count = min(_SESSIONS, options.runs)
    async with SandboxManager(_config()) as sandbox, AsyncExitStack() as stack:
        for _ in range(count):
            session = await stack.enter_async_context(sandbox.session())
            await session.run("x = 1")
        await anyio.sleep(0.5)
        everyone = processes.descendants(processes.launcher())
        total = sum(processes.pss_mib(pid) for pid in everyone)
    each = Sample(name="PSS of each session", unit="MB", values=[total / count])
    work = f"{count} idle sessions"
    return [Row(work=work, ours=each, compare="absolute", gate=9)]


async def crowd(options: Options) -> list[Row]:
    """A hundred idle sessions: opened, closed, and one that works among them."""
    count = min(_SESSIONS, options.runs)
    opening, closing = Sample(name="open, each"), Sample(name="close, each")
    among = Sample(name="session.run, among idle ones")
    alone = Sample(name="session.run, alone")
    async with SandboxManager(_config()) as sandbox, sandbox.session() as busy:
        await busy.run("x = 1")

        async def measure(sample: Sample) -> None:
            await processes.all_settled()
            for _ in range(max(3, options.runs // 2)):
                started = time.perf_counter()
                await busy.run("x = 1")
                sample.values.append((time.perf_counter() - started) * 1_000)

        for _ in range(max(1, options.runs // 50)):
            await measure(alone)
            async with AsyncExitStack() as stack:
                started = time.perf_counter()
                for _ in range(count):
                    await stack.enter_async_context(sandbox.session())
                opening.values.append((time.perf_counter() - started) * 1_000 / count)
                await measure(among)
                left = len(processes.children(processes.launcher())) - count
                started = time.perf_counter()
            with anyio.fail_after(_CLOSING_SECONDS):
                while len(processes.children(processes.launcher())) > left:
                    await anyio.sleep(_POLL_SECONDS)
            closing.values.append((time.perf_counter() - started) * 1_000 / count)
    work = f"{count} idle sessions"
    return [
        Row(work=f"{work}, opened", ours=opening, compare="absolute"),
        Row(work=f"{work}, closed", ours=closing, compare="absolute"),
        *against(f"x = 1 among {work}", [among, alone], [None], "share"),
    ]


async def callers(options: Options) -> list[Row]:
    """Fresh runs of eight callers, each run timed: from a full pool, and in a row."""
    together = Sample(name="sandbox.run from a full pool")
    in_a_row = Sample(name="sandbox.run, one after the other")
    rounds = max(1, options.runs // _CALLERS)
    async with SandboxManager(_config(pool=_CALLERS)) as sandbox:

        async def call(sample: Sample, count: int) -> None:
            for _ in range(count):
                started = time.perf_counter()
                if (await sandbox.run("print(1)")).stdout != "1\n":
                    raise WrongResult("print(1) printed something else")
                sample.values.append((time.perf_counter() - started) * 1000)

        async def calls(sample: Sample, count: int) -> None:
            async with anyio.create_task_group() as tasks:
                for _ in range(_CALLERS):
                    tasks.start_soon(call, sample, count)

        for _ in range(rounds):
            await processes.cells_settled(sandbox, _CALLERS)
            await calls(together, 1)
        await calls(in_a_row, rounds)
    slowest = Sample(name=together.name, values=[together.p95])
    work = "subprocess, 8 callers"
    return [
        Row(work=f"{work} at once", ours=together, compare="absolute"),
        Row(work=f"{work} at once, p95", ours=slowest, compare="absolute", gate=20),
        Row(work=f"{work} without a pause", ours=in_a_row, compare="absolute"),
    ]


SESSION_ROWS: dict[str, Callable[[Options], Awaitable[list[Row]]]] = {
    "session-rerun": rerun,
    "session-rerun-docker": docker_rerun,
    "docker-pooled": partial(docker_pooled, "runc", 42),
    "runsc-pooled": partial(docker_pooled, "runsc", 8.2),
    "session-fork": fork,
    "session-files": files,
    "session-idle": idle_sessions,
    "session-crowd": crowd,
    "session-callers": callers,
}
