"""Nothing of a `confined` cell outlives it, though no namespace ends its processes."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from toolcell.sandbox import SandboxManager

from ..conftest import CONFINED
from ..support.child import Child
from ..support.polling import until

pytestmark = pytest.mark.anyio

DAEMON = """
import os, signal, subprocess, sys
for number in (1, 2, 15):
    signal.signal(number, signal.SIG_IGN)
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp(sys.executable, [sys.executable, "-c", CODE, MARK])
        os._exit(0)
"""
SLEEP = "CODE = 'import time; time.sleep(600)'\n"
# Each runs a moment only, and has a child by then.
CHAIN = "CODE = 'import os, time\\nwhile os.fork() == 0: time.sleep(0.002)'\n"

HOST = """
import anyio, sys
from toolcell.sandbox import SandboxConfig, SandboxManager
async def main():
    config = SandboxConfig(backend="subprocess", strongest_isolation="confined")
    async with SandboxManager(config) as manager:
        async with manager.session() as session:
            await session.run(sys.argv[1])
            print("up", flush=True)
            await anyio.sleep(600)
anyio.run(main)
"""


def living(mark: str) -> list[int]:
    """Return the processes that were given a mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in words and int(path.name) != os.getpid():
            found.append(int(path.name))
    return found


def leaving(kind: str) -> tuple[str, str]:
    mark = secrets.token_hex(8)
    return f"{kind}MARK = {mark!r}\n{DAEMON}", mark


@pytest.mark.promise("E-41", "E-42")
@pytest.mark.parametrize("kind", [SLEEP, CHAIN], ids=["sleepers", "chains"])
async def test_daemons_end_with_their_run(kind: str) -> None:
    code, mark = leaving(kind)
    async with SandboxManager(CONFINED.config()) as manager:
        result = await manager.run(f"{code}import time; time.sleep(0.3)")
        left = living(mark)
        async with manager.session() as session:
            await session.run(f"{code}import time; time.sleep(0.3)", fresh=True)
            left_in_session = living(mark)

    assert (result.status, left, left_in_session) == ("ok", [], [])


@pytest.mark.promise("E-41")
@pytest.mark.parametrize("victim", ["host", "launcher", "supervisor"])
async def test_daemons_end_with_who_is_killed(victim: str) -> None:
    code, mark = leaving(SLEEP)
    before = folders()
    process = Child(
        [sys.executable, "-c", HOST, code], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        launcher = children(process.pid)[0]
        pids = {
            "host": process.pid,
            "launcher": launcher,
            "supervisor": children(children(launcher)[0])[0],
        }
        os.kill(pids[victim], signal.SIGKILL)
        await until(lambda: not living(mark))
        if victim == "host":
            await until(lambda: folders() <= before)
    finally:
        process.kill()
        process.communicate()
        for pid in living(mark):
            os.kill(pid, signal.SIGKILL)


def folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob(f"toolcell_*{os.getpid()}*"))


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in path.read_text().split()]


async def test_files_end_with_their_cell() -> None:
    async with SandboxManager(CONFINED.config()) as manager:
        async with manager.session() as session:
            result = await session.run(
                "import os\nfor n in range(90): os.mkdir('d'); os.chdir('d')\n"
                "os.chmod('.', 0)\nos.environ['HOME']"
            )
            home = Path(str(result.value))
            assert home.exists()
        await until(lambda: not home.parent.exists())
