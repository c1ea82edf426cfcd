"""The warm-up of a cell has no effect outside of it."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from toolcell.sandbox import SandboxManager
from toolcell.sandbox.backends import launcher_start
from toolcell.sandbox.cell.supervisor import warm_up

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
import os, resource, signal
from toolcell.sandbox.cell.supervisor.warm_up import rehearse

heard, fails = [], []
signal.signal(signal.SIGURG, lambda number, _: heard.append(number))
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
before = os.listdir("/proc/self/fd")
for room in range(len(before), 20):
    resource.setrlimit(resource.RLIMIT_NOFILE, (room, most))
    try:
        rehearse()
    except OSError as error:
        fails.append(error.errno)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    assert os.listdir("/proc/self/fd") == before, room
print(heard, set(fails), len(fails) < 20 - len(before))
"""


def test_a_rehearsal_leaves_nothing_where_it_fails_or_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REHEARSE],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        start_new_session=True,
        timeout=60,
    )

    assert done.stdout == f"[] {{{errno.EMFILE}}} True\n"


def test_no_interpreter_rehearses_that_adapts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rehearsed: list[object] = []
    monkeypatch.setattr(warm_up, "_run_dummy", lambda *given: rehearsed.append(given))
    with monkeypatch.context() as older:
        older.setattr(sys, "version_info", (3, 10, 14))
        warm_up.rehearse()

    assert not rehearsed


@pytest.mark.anyio
async def test_cells_start_where_a_rehearsal_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begins = "wake = os.pipe()"
    fails = 'raise OSError(24, "Too many open files")'
    code = changed_bundle([("supervisor.warm_up", begins, fails)])
    for name in ("bundle", "compiled_bundle"):
        monkeypatch.setattr(launcher_start, name, lambda: code)
    async with SandboxManager(SUBPROCESS.config()) as manager:
        assert (await manager.run("1 + 1")).value == 2
