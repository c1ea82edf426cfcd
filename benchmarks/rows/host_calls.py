"""Rows on the bridge: a program in a cell calls a tool of the host."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Awaitable, Callable

from baselines.programs import PYTHON
from harness.measure import (
    CALLS,
    Contender,
    Row,
    Sample,
    WrongResult,
    against,
    take_turns,
)
from harness.options import Options

from rows.mcp import bare_stdio
from toolcell.sandbox import SandboxConfig, SandboxManager
from toolcell.tools import CodeExecutor, ToolRegistry, tool

_WORK = f"{CALLS} bridge round trips"

_PROGRAM = """
import time
tools.add(0, 1)
began = time.perf_counter()
for i in range(calls):
    assert tools.add(i, 1) == i + 1
time.perf_counter() - began
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
    samples = await _beside(_pipe(), options)
    each = Sample(name="tools.add", values=[ms / CALLS for ms in samples[0].values])
    return [
        *against(_WORK, samples, [None], "share"),
        Row(work="bridge round trip", ours=each, compare="absolute"),
    ]


async def peer_mcp(options: Options) -> list[Row]:
    """The same call to a server of the bare MCP library, over stdio."""
    async with bare_stdio() as theirs:
        return against(_WORK, await _beside(theirs, options), [0.4], "share")


async def _beside(other: Contender, options: Options) -> list[Sample]:
    """Measure round trips of the bridge, and others, by their own clocks."""
    config = SandboxConfig(backend="subprocess", python=PYTHON)
    async with SandboxManager(config) as sandbox:
        code = CodeExecutor(
            sandbox, ToolRegistry([add]), guard=None, max_calls=CALLS + 1
        )

        async def ours() -> float:
            result = await code.execute(_PROGRAM, extra_namespace={"calls": CALLS})
            if not isinstance(result.value, float) or len(result.calls) != CALLS + 1:
                raise WrongResult(f"the calls became {result!r}")
            return result.value * 1_000

        runs = max(1, options.runs // 10)
        contenders = [Contender(name="tools.add", run=ours), other]
        return [each.by_own_clock() for each in await take_turns(contenders, runs)]


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
            for _ in range(CALLS):
                here.sendall(b"x")
                here.recv(64)
            took = (time.perf_counter() - began) * 1_000
        peer.wait()
        return took

    return Contender(name="bare pipe", run=run)


BRIDGE_ROWS: dict[str, Callable[[Options], Awaitable[list[Row]]]] = {
    "bridge": bridge,
    "peer-bridge-mcp": peer_mcp,
}
