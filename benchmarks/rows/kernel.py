"""The kernel's own price of what cells are made of, by a program in C."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from baselines import programs
from harness.measure import Contender, Missing, Row, WrongResult, against, take_turns
from harness.options import Options, RowMaker
from harness.processes import cells_settled

from toolcell.sandbox import SandboxConfig, SandboxManager

_SOURCE = Path(__file__).parents[1] / "baselines" / "kernel.c"
_FORKS = 20
_POOL = 8
_MEBIBYTES = 12
"""Memory of the process that forks: as much as that which programs are forked from."""


@contextmanager
def _compiled() -> Iterator[str]:
    programs.needs("cc")
    with TemporaryDirectory() as folder:
        program = f"{folder}/kernel"
        programs.output(["cc", "-O2", "-o", program, str(_SOURCE)])
        try:
            programs.output([program, "namespaces", "1", "1"])
        except WrongResult:
            raise Missing("this user can make no namespaces here") from None
        yield program


async def _milliseconds(
    program: str, kind: str, forks: int, *command: str
) -> tuple[float, float]:
    """Return what a fork and its end takes: by the CPU, and by the clock."""
    arguments = [program, kind, str(forks), str(_MEBIBYTES), *command]
    cpu, clock = programs.output(arguments).split()
    return float(cpu), float(clock)


async def forks(options: Options) -> list[Row]:
    """CPU time of a fork and its end: plain, and into seven new namespaces."""
    with _compiled() as program:

        async def run(kind: str) -> float:
            return (await _milliseconds(program, kind, _FORKS))[0]

        contenders = [
            Contender(name="in new namespaces", run=partial(run, "namespaces")),
            Contender(name="a fork and its end", run=partial(run, "plain")),
        ]
        samples = await take_turns(contenders, options.runs)
    clocks = [sample.by_own_clock() for sample in samples]
    work = f"a fork of {_MEBIBYTES} MiB in C, CPU"
    return against(work, clocks, [None], "share")


async def starts(options: Options) -> list[Row]:
    """A fresh cell beside the least that the kernel takes for such a start."""
    python = (programs.PYTHON, "-I", "-S", "-c", "pass")
    with _compiled() as program:
        return [
            *await _start(options, 0, 1.15, (program, "namespaces", 1, *python)),
            *await _start(options, _POOL, 2, (program, "plain", _FORKS)),
        ]


async def _start(
    options: Options, pool: int, gate: float, least: tuple[Any, ...]
) -> list[Row]:
    config = SandboxConfig(backend="subprocess", python=programs.PYTHON, pool=pool)
    async with SandboxManager(config) as sandbox:

        async def ours() -> float:
            began = time.perf_counter()
            result = await sandbox.run("print(1)", agent_id="benchmark")
            took = time.perf_counter() - began
            if result.stdout != "1\n":
                raise WrongResult(f"print(1) became {result!r}")
            return took * 1_000

        async def theirs() -> float:
            return (await _milliseconds(*least))[1]

        settle = partial(cells_settled, sandbox, pool)
        contenders = [
            Contender(name="sandbox.run", run=ours, settle=settle),
            Contender(name=f"{least[1]}, in C", run=theirs),
        ]
        samples = await take_turns(contenders, options.runs)
    clocks = [sample.by_own_clock() for sample in samples]
    work = f"subprocess, fresh cell {'from the pool' if pool else 'on demand'}"
    return against(f"{work}, and the least", clocks, [gate], "share")


KERNEL_ROWS: dict[str, RowMaker] = {"kernel-fork": forks, "kernel-start": starts}
