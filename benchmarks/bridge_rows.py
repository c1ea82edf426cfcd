"""Rows on the bridge: a program in a cell calls a tool of the host."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from baselines import PYTHON
from measure import Contender, Row, Sample, WrongResult, against, take_turns

from toolcell.sandbox import SandboxConfig, SandboxManager
from toolcell.tools import CodeExecutor, ToolRegistry, tool

if TYPE_CHECKING:
    from rows import Options

_CALLS = 50
"""Round trips in one run; the program's own clock leaves the first one out."""

_PROGRAM = """
import time
tools.add(0, 1)
times = []
for i in range(calls):
    began = time.perf_counter()
    assert tools.add(i, 1) == i + 1
    times.append(time.perf_counter() - began)
times
"""
_PEER = """
import socket, sys
with socket.socket(fileno=int(sys.argv[1])) as pipe:
    while data := pipe.recv(64):
        pipe.sendall(data)
"""


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def bridge(options: Options) -> list[Row]:
    """`tools.add` from a cell that is a process of this machine."""
    seen: list[float] = []
    config = SandboxConfig(backend="subprocess", python=PYTHON)
    async with SandboxManager(config) as sandbox:
        code = CodeExecutor(
            sandbox, ToolRegistry([add]), guard=None, max_calls=_CALLS + 1
        )

        async def ours() -> float:
            result = await code.execute(_PROGRAM, extra_namespace={"calls": _CALLS})
            if not isinstance(result.value, list) or len(result.calls) != _CALLS + 1:
                raise WrongResult(f"the calls became {result!r}")
            times = [float(str(each)) * 1_000 for each in result.value]
            seen.extend(times)
            return sum(times)

        contenders = [Contender(name="tools.add", run=ours), _pipe()]
        runs = max(1, options.runs // 10)
        samples = await take_turns(contenders, runs)
    own = [each.by_own_clock() for each in samples]
    single = Sample(name="tools.add", values=seen)
    return [
        *against(f"{_CALLS} bridge round trips", own, [None], "share"),
        Row(work="bridge round trip", ours=single, compare="absolute", gate=0.5),
    ]


def _pipe() -> Contender:
    """Return as many bare round trips between two processes."""

    async def run() -> float:
        # Blocking on purpose: nothing of ours runs while the baseline does.
        here, there = socket.socketpair()
        with here, there:
            arguments = [PYTHON, "-I", "-c", _PEER, str(there.fileno())]
            peer = subprocess.Popen(arguments, pass_fds=[there.fileno()])
            there.close()
            here.sendall(b"x")
            here.recv(64)
            began = time.perf_counter()
            for _ in range(_CALLS):
                here.sendall(b"x")
                here.recv(64)
            took = (time.perf_counter() - began) * 1_000
        peer.wait()
        return took

    return Contender(name="bare pipe", run=run)


BRIDGE_ROWS: dict[str, Callable[[Options], Awaitable[list[Row]]]] = {"bridge": bridge}
