"""A signal ends a command whenever it comes, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from toolcell.sandbox.machine import host_cgroups

from ...support.child import Child
from ...support.polling import until
from ...support.process_tree import children, runs
from ...support.toolcell_command import TOOLCELL

# The signal reaches a thread beside the event loop's, which sleeps: as if it had come
# right before the loop went to sleep, where nothing interrupts it.
PROGRAM = """
import os, signal, threading
import anyio
from toolcell.host.terminal.signals import SignalExit, run_async

sleeping = threading.Event()
main = threading.get_native_id()

def interrupt():
    sleeping.wait()
    state = ""
    while state != "S":
        with open(f"/proc/self/task/{main}/stat") as file:
            state = file.read().rpartition(")")[2].split()[0]
    os.kill(os.getpid(), signal.SIGINT)

async def sleep():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sleeping.set()
    await anyio.sleep(600)

threading.Thread(target=interrupt).start()
try:
    run_async(sleep)
except SignalExit as ended:
    print(ended)
"""


def ran(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def test_ctrl_c_wakes_a_loop_that_sleeps() -> None:
    done = ran(PROGRAM)

    assert (done.stdout, done.returncode) == ("130\n", 0), done.stderr


@pytest.fixture
def under_nohup() -> Iterator[None]:
    """Ignore SIGHUP here, as all that `nohup` starts does, the tests too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


def heed_hangup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.promise("N24")
@pytest.mark.usefixtures("under_nohup")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("option", ["--json", None])
def test_a_signal_ends_a_run_and_its_cell(
    tmp_path: Path, number: signal.Signals, option: str | None
) -> None:
    program = tmp_path / "program.py"
    program.write_text("import time; time.sleep(600)")
    options = ("--backend", "subprocess", *([option] if option else []))
    arguments = [TOOLCELL, "run", str(program), *options]
    with Child(
        arguments, stderr=subprocess.PIPE, text=True, preexec_fn=heed_hangup
    ) as process:
        # The launcher, and its first cell.
        while not (cells := children(*children(process.pid))):
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(number)
        _, told = process.communicate(timeout=120)

    assert process.returncode == 128 + number
    assert f"ended by {number.name}" in told
    assert told.count("\n") == 1
    assert option is None or json.loads(told)["error"]["kind"] == "interrupted"
    # What is killed with its parent ends in its own time.
    anyio.run(until, lambda: not any(runs(*each) for each in cells.items()))
    assert not groups(process.pid)


def groups(pid: int) -> list[Path]:
    """Return the control groups that a process made; none where it can make none."""
    with contextlib.suppress(OSError):
        places = map(Path, set(host_cgroups.parents().values()))
        return [path for place in places for path in place.glob(f"toolcell-*-{pid}-*")]
    return []


EARLY = """
import os, signal, sys
from toolcell.host import main

class Finder:
    def find_spec(self, name, *rest):
        if name == "toolcell.host.cli.commands":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
main()
"""


def test_ctrl_c_at_the_start_is_told_like_any() -> None:
    done = ran(EARLY)

    assert (done.returncode, done.stderr) == (130, "toolcell: ended by SIGINT\n")


FINALIZER = """
import os, signal, time
import anyio
from toolcell.host.terminal.signals import end_on_signals, run_async

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

end_on_signals()
Finalized()
{}
"""


@pytest.mark.parametrize("rest", ["time.sleep(60)", "run_async(anyio.sleep, 60)"])
def test_a_signal_that_comes_while_an_object_is_finalized_is_not_lost(
    rest: str,
) -> None:
    done = ran(FINALIZER.format(rest))

    assert done.returncode == 128 + signal.SIGTERM, done.stderr
