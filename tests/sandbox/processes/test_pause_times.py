"""A pause whose own process stands still meanwhile stops the others all the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The first process of a PID namespace of its own, as it signals all others. It stands
# still, so that its time is over, once it has seen the other one stopped.
PAUSING = """
import os, subprocess
from toolcell.sandbox.cell.processes import pause

assert os.getpid() == 1
other = subprocess.Popen(["sleep", "600"])
times, look = [0.0], pause._all_still

def all_still():
    found = look()
    if found:
        times.append(3.0)
    return found

pause._all_still, pause.time.monotonic = all_still, lambda: times[-1]
made = pause.Pause()
print(made.begin(), pause.stat_of(other.pid)[0].decode())
made.end()
other.kill()
"""


@pytest.mark.namespaces
def test_who_stood_still_looks_again_before_it_gives_up() -> None:
    alone = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")
    done = subprocess.run(
        [*alone, sys.executable, "-c", PAUSING],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.stdout, done.returncode) == ("True T\n", 0), done.stderr
