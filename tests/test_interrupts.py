"""Ctrl-C ends a command whenever it comes."""

from __future__ import annotations

import subprocess
import sys

# The signal reaches a thread beside the event loop's, which sleeps: as if it had come
# right before the loop went to sleep, where nothing interrupts it.
PROGRAM = """
import os, signal, threading
import anyio
from toolcell.host.interrupts import run_async

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
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_wakes_a_loop_that_sleeps() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert (done.stdout, done.returncode) == ("interrupted\n", 0), done.stderr
