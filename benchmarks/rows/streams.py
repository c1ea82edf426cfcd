"""Programs that do little but print, or read their input by lines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from baselines import programs
from baselines.programs import PYTHON
from harness.measure import Contender, Row, WrongResult, against, take_turns
from harness.options import Options

from toolcell.sandbox import ExecutionResult, SandboxConfig, SandboxManager

_PRINTS = "for i in range(100000): print(i, i * i)\n"
_READS = "import sys\nlines = 0\nwhile sys.stdin.buffer.readline(): lines += 1\n"
_LINES = b"12345 67890\n" * 300_000
# The same text by the interpreter of a cell, at the same place.
_PLAIN = """\
import resource, subprocess, sys
with open("input", "rb") as given:
    command = [sys.executable, "work.py"]
    subprocess.run(command, stdin=given, stdout=subprocess.PIPE, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print((used.ru_utime + used.ru_stime) * 1000)
"""


async def _lines(
    options: Options, *, code: str, stdin: bytes, runtime: str | None, gate: float
) -> list[Row]:
    """CPU time of a program in a cell, and as a file of plain Python in such a cell."""
    async with SandboxManager(_config(options, runtime)) as sandbox:

        async def ours() -> float:
            return _checked(await sandbox.run(code, stdin=stdin)).usage.cpu_ms

        async def theirs() -> float:
            files = {"work.py": code.encode(), "input": stdin}
            return float(_checked(await sandbox.run(_PLAIN, files=files)).stdout)

        contenders = [
            Contender(name="sandbox.run", run=ours, burst=1),
            Contender(name="python3 file.py", run=theirs, burst=1),
        ]
        samples = await take_turns(contenders, options.runs)
    inside = [sample.by_own_clock() for sample in samples]
    work = "300,000 lines read" if stdin else "100,000 lines printed"
    return against(f"{runtime or 'subprocess'}, {work}", inside, [gate], "share")


def _config(options: Options, runtime: str | None) -> SandboxConfig:
    if runtime is None:
        return SandboxConfig(backend="subprocess", python=PYTHON)
    programs.needs_docker(options.image, runtime)
    return SandboxConfig(backend="docker", image=options.image, runtime=runtime)


def _checked(result: ExecutionResult) -> ExecutionResult:
    if not result.ok:
        raise WrongResult(f"the lines became {result!r}")
    return result


_PLACES = {"": (None, 1.5), "-docker": ("runc", 1.5), "-runsc": ("runsc", 3.0)}

STREAM_ROWS: dict[str, Callable[[Options], Awaitable[list[Row]]]] = {
    f"{name}{place}": partial(
        _lines, code=code, stdin=stdin, runtime=runtime, gate=gate
    )
    for name, code, stdin in (
        ("print-heavy", _PRINTS, b""),
        ("stdin-heavy", _READS, _LINES),
    )
    for place, (runtime, gate) in _PLACES.items()
}
