"""A kernel without pidfd_open, such as gVisor's: sockets hold the processes instead."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from ...support.child import Child
from ...support.polling import until
from ...support.process_tree import look

pytestmark = [pytest.mark.anyio, pytest.mark.namespaces]

PRELUDE = """
import ctypes, json, os, signal, sys, time, anyio
from toolcell.sandbox import Limits, SandboxConfig, SandboxManager
from toolcell.sandbox.cell.kernel import linux, seccomp
from toolcell.sandbox.cell.kernel.bpf import ENOSYS, rule
from toolcell.sandbox.cell.kernel.process_tree import children

rules = seccomp.of_rules(os.uname().machine, (rule("pidfd_open", ENOSYS),), {})
linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
seccomp._put_up(rules)
config = SandboxConfig(backend="subprocess")

def tell(**said):
    print(json.dumps(said), flush=True)
"""
KILLS = """
async def main():
    async with SandboxManager(config) as manager:
        [launcher] = children(os.getpid())
        ok = await manager.run("6 * 7")
        late = await manager.run("while True: pass", limits=Limits(wall_seconds=0.2))
        async with manager.session() as session:
            await session.run("1")
            cells = children(launcher)
            for pid in cells:
                # None of them can end by itself.
                os.kill(pid, signal.SIGSTOP)
        with anyio.move_on_after(60):
            while set(cells) <= set(children(launcher)):
                await anyio.sleep(0.01)
        left = set(cells) & set(children(launcher))
        tell(value=ok.value, late=late.status, ended=len(cells) - len(left))
    tell(left=[pid for pid in cells if os.path.exists(f"/proc/{pid}")])
anyio.run(main)
"""
DIES = """
async def main():
    async with SandboxManager(config) as manager:
        [launcher] = children(os.getpid())
        async with manager.session() as session:
            await session.run("1")
            # Unlike os.fork it leaves all of the host's sockets open.
            heir = ctypes.PyDLL(None).fork()
            if not heir:
                time.sleep(600)
            tell(heir=heir, processes=[launcher, *children(launcher)])
            os.kill(os.getpid(), signal.SIGKILL)
anyio.run(main)
"""


def host(code: str) -> Child[str]:
    """Start a host on a kernel without it."""
    return Child(
        [sys.executable, "-c", PRELUDE + code],
        stdout=subprocess.PIPE,
        text=True,
    )


async def test_cells_run_and_are_killed() -> None:
    with host(KILLS) as process:
        output, _ = process.communicate(timeout=300)

    said: dict[str, Any] = {}
    for line in output.splitlines():
        said.update(json.loads(line))
    assert said == {"value": 42, "late": "timeout", "ended": 1, "left": []}


async def test_cells_end_with_a_host_whose_fork_lives() -> None:
    with host(DIES) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        try:
            process.wait(300)
            assert len(said["processes"]) >= 2
            await until(lambda: not any(map(look, said["processes"])))
        finally:
            subprocess.run(["kill", "-9", str(said["heir"])], check=True)
