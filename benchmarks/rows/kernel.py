"""The kernel's own price of what cells are made of, by a program in C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from baselines import programs
from harness.measure import Contender, Missing, Row, WrongResult, against, take_turns
from harness.options import Options, RowMaker

_SOURCE = Path(__file__).parents[1] / "baselines" / "kernel.c"
_FORKS = 20
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


async def forks(options: Options) -> list[Row]:
    """CPU time of a fork and its end: plain, and into seven new namespaces."""
    with _compiled() as program:

        async def run(kind: str) -> float:
            arguments = [program, kind, str(_FORKS), str(_MEBIBYTES)]
            return float(programs.output(arguments))

        contenders = [
            Contender(name="in new namespaces", run=partial(run, "namespaces")),
            Contender(name="a fork and its end", run=partial(run, "plain")),
        ]
        samples = await take_turns(contenders, options.runs)
    clocks = [sample.by_own_clock() for sample in samples]
    work = f"a fork of {_MEBIBYTES} MiB in C, CPU"
    return against(work, clocks, [None], "share")


KERNEL_ROWS: dict[str, RowMaker] = {"kernel-fork": forks}
