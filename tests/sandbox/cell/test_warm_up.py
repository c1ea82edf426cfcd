"""The warm-up of a cell has no effect outside of it."""

from __future__ import annotations

import subprocess
import sys

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
