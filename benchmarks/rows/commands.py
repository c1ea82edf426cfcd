"""Commands of sessions: starting one, a terminal's echo, large files in and out."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from functools import partial

from baselines import programs
from baselines.programs import PYTHON
from harness.measure import Contender, Row, Sample, WrongResult, against, take_turns
from harness.options import Options

from toolcell.sandbox import Limits, SandboxConfig, SandboxManager, SandboxSession

_FILE_MB = 100
_TRUE = "/bin/true"
_LIMITS = Limits(disk_mib=2 * _FILE_MB, memory_mib=1024)


def _config(options: Options, runtime: str) -> SandboxConfig:
    if not runtime:
        return SandboxConfig(backend="subprocess", python=PYTHON, limits=_LIMITS)
    programs.needs_docker(options.image, runtime)
    return SandboxConfig(
        backend="docker", image=options.image, runtime=runtime, limits=_LIMITS
    )


def _true_in(session: SandboxSession) -> Contender:
    async def run() -> None:
        if not (await (await session.exec([_TRUE])).wait()).ok:
            raise WrongResult("true is not ok")

    return Contender(name="session.exec", run=run)


async def command(options: Options) -> list[Row]:
    """`true` in a session against the same without walls."""
    work = "subprocess, a command in a session"
    bare = programs.command("fork + exec", [_TRUE], prints=b"")
    async with SandboxManager(_config(options, "")) as sandbox:
        async with sandbox.session() as session:
            samples = await take_turns([_true_in(session), bare], options.runs)
    ours, theirs = samples
    more = [mine - 1.2 * theirs.p50 for mine in ours.values]
    added = Sample(name="less 1.2 times fork + exec", values=more)
    bound = Row(work=work, ours=added, compare="absolute", gate=2)
    return [*against(work, samples, [None], "share"), bound]


async def docker_command(options: Options) -> list[Row]:
    """The same in a container against `docker exec` of it."""
    async with SandboxManager(_config(options, "runc")) as sandbox:
        async with sandbox.session() as session:
            ours = _true_in(session)
            with programs.docker_exec(options.image, "runc", [_TRUE], b"") as theirs:
                samples = await take_turns([ours, theirs], options.runs)
    return against("docker/runc, a command in a session", samples, [0.25], "share")


async def echo(options: Options) -> list[Row]:
    """A byte to a terminal, and its echo back."""
    sample = Sample(name="write + output")
    async with SandboxManager(_config(options, "")) as sandbox:
        async with sandbox.session() as session:
            shell = await session.exec(["cat"], pty=(24, 80))
            output = shell.output()
            for _ in range(options.runs):
                started = time.perf_counter()
                await shell.write(b"x")
                if await anext(output) != ("stdout", b"x"):
                    raise WrongResult("the terminal echoed something else")
                sample.values.append((time.perf_counter() - started) * 1000)
            await output.aclose()
            await shell.kill()
    work = "subprocess, echo of a terminal"
    return [Row(work=work, ours=sample, compare="absolute", gate=5)]


async def transfer(runtime: str, options: Options) -> list[Row]:
    """100 MB into a session, and out again."""
    into, out = Sample(name="write_file"), Sample(name="read_file")
    data = os.urandom(_FILE_MB * 1024 * 1024)
    async with SandboxManager(_config(options, runtime)) as sandbox:
        async with sandbox.session() as session:
            for _ in range(max(1, options.runs // 20)):
                started = time.perf_counter()
                await session.write_file("data", data)
                into.values.append((time.perf_counter() - started) * 1000)
                started = time.perf_counter()
                if await session.read_file("data") != data:
                    raise WrongResult("other bytes came back")
                out.values.append((time.perf_counter() - started) * 1000)
    work = f"{f'docker/{runtime}' if runtime else 'subprocess'}, 100 MB"
    gate = None if runtime == "runsc" else 1000
    return [
        Row(work=f"{work} in", ours=into, compare="absolute", gate=gate),
        Row(work=f"{work} out", ours=out, compare="absolute", gate=gate),
    ]


COMMAND_ROWS: dict[str, Callable[[Options], Awaitable[list[Row]]]] = {
    "session-exec": command,
    "session-exec-docker": docker_command,
    "session-echo": echo,
    "session-transfer": partial(transfer, ""),
    "session-transfer-docker": partial(transfer, "runc"),
    "session-transfer-runsc": partial(transfer, "runsc"),
}
