"""The warm-up of a cell has no effect outside of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from toolcell.sandbox import SandboxManager
from toolcell.sandbox.backends import launcher_start

from ...conftest import SUBPROCESS
from ...support.cells.changed_bundle import changed_bundle

WARM_UP = """
import os, signal, subprocess
from toolcell.sandbox.cell.accounting.usage import ResourceAccounting
from toolcell.sandbox.cell.supervisor.child import open_pipes
from toolcell.sandbox.cell.supervisor.warm_up import warm_up
from toolcell.sandbox.cell.wire.channel import SupervisorChannel

heard = []
signal.signal(signal.SIGURG, lambda number, _: heard.append(number))
child, pipes = open_pipes(None)
# The child says that it is done.
os.write(pipes.result, b"{}")
wake = os.pipe()
for fd in wake:
    os.set_blocking(fd, False)
# As a cell has one, which waits.
waits = subprocess.Popen(["sleep", "600"])
warm_up(child, SupervisorChannel(*os.pipe()), ResourceAccounting({}, False), wake)
waits.kill()
print(len(heard))
"""


def test_no_other_process_hears_a_signal() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WARM_UP],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        # A signal to the whole group would reach this process.
        start_new_session=True,
        timeout=60,
    )

    assert done.stdout == "0\n"


REHEARSE = """
import os, signal, subprocess
from toolcell.sandbox.cell.supervisor.warm_up import rehearse

heard = []
signal.signal(signal.SIGURG, lambda number, _: heard.append(number))
waits = subprocess.Popen(["sleep", "600"])
before = os.listdir("/proc/self/fd")
rehearse()
print(heard, os.listdir("/proc/self/fd") == before, waits.poll())
waits.kill()
"""


def test_a_rehearsal_leaves_nothing_and_collects_nobody() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REHEARSE],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        start_new_session=True,
        timeout=60,
    )

    assert done.stdout == "[] True None\n"


@pytest.mark.anyio
async def test_cells_start_where_a_rehearsal_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begins = "accounting = ResourceAccounting({}, adopts=False)"
    fails = f'raise OSError(24, "Too many open files")\n    {begins}'
    code = changed_bundle([("supervisor.warm_up", begins, fails)])
    for name in ("bundle", "compiled_bundle"):
        monkeypatch.setattr(launcher_start, name, lambda: code)
    async with SandboxManager(SUBPROCESS.config()) as manager:
        assert (await manager.run("1 + 1")).value == 2
