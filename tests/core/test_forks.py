"""What a forked process makes anew, and when."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, threading
from toolcell.core.storage.processes import ForkAware, ForkLock, in_each_child

class Owned(ForkAware):
    renewed = 0
    def _renew(self):
        self.renewed += 1
    def use(self):
        self._follow_fork()
        return self.renewed

calls = []
in_each_child(lambda: calls.append(os.getpid()))
owned, lock = Owned(), ForkLock()
assert owned.use() == 0 and not owned._is_inherited

lock.__enter__()
child = os.fork()
if child == 0:
    with lock:
        print(calls == [os.getpid()], owned._is_inherited, flush=True)
    print(owned.use(), owned.use(), owned._is_inherited, flush=True)
    grandchild = os.fork()
    if grandchild == 0:
        print(owned.use(), len(calls), flush=True)
        os._exit(0)
    os.waitpid(grandchild, 0)
    os._exit(0)
os.waitpid(child, 0)
print(owned.use(), calls, flush=True)
"""


def test_each_forked_process_renews_once_and_its_parent_never() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["True True", "1 1 False", "2 2", "0 []"]
