"""A forked process that uses the guard's files: its own locks, and opened once.

In each script one thread of the child takes a file over, and another comes meanwhile.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from toolcell.guard import verify_audit

TAKEN_OVER = """
import os, sys, threading
from toolcell.guard import ApprovalStore, AuditLog
from toolcell.guard.audit.file import AuditFile

kind, path = sys.argv[1:]
if kind == "audit":
    log, opener = AuditLog(path), AuditFile
    use = lambda: log.append("used")
else:
    store, opener = ApprovalStore(path), ApprovalStore
    use = store.check
done, opens, reopen = [], [], opener._open

def use_it(name):
    use()
    done.append(name)

def opened(self):
    opens.append(threading.current_thread())
    if len(opens) == 1:
        second.start()
        second.join(0.2)
    reopen(self)

use_it("parent")
child = os.fork()
if child == 0:
    second = threading.Thread(target=use_it, args=["second"])
    opener._open = opened
    use_it("first")
    second.join()
    print(sorted(done), len(opens), flush=True)
    os._exit(0)
os.waitpid(child, 0)
use_it("parent again")
"""

HELD = """
import os, sys, threading, time, anyio
from toolcell.core import ToolCall
from toolcell.guard import ActionGuard, AgentPolicy, CallFacts, SQLiteStore

store = SQLiteStore(sys.argv[1], deadline=30)
policy = AgentPolicy(agent_id="a", allow=["*"], budgets=[{"unit": "calls", "limit": 4}])
guard = ActionGuard([policy], store=store)
inside, go_on = threading.Event(), threading.Event()

def transaction():
    inside.set()
    go_on.wait(0.3)

busy = threading.Thread(target=store._transact, args=[transaction, time.monotonic()])
busy.start()
inside.wait()
child = os.fork()
if child == 0:
    call = ToolCall(id="1", name="x", agent_id="a")
    print(anyio.run(guard.decide, call, CallFacts(cost={})).reason, flush=True)
    os._exit(0)
go_on.set()
busy.join()
os.waitpid(child, 0)
"""


def printed_by(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_one_thread_of_a_forked_process_reopens_the_log(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    assert printed_by(TAKEN_OVER, "audit", str(path)) == (
        "['first', 'parent', 'second'] 1\n"
    )
    report = verify_audit(path)
    assert (report.ok, report.records) == (True, 4), report


def test_one_thread_of_a_forked_process_reopens_the_approvals(tmp_path: Path) -> None:
    assert printed_by(TAKEN_OVER, "approvals", str(tmp_path / "state.db")) == (
        "['first', 'parent', 'second'] 1\n"
    )


def test_a_fork_in_the_midst_of_a_transaction_leaves_no_lock_behind(
    tmp_path: Path,
) -> None:
    assert printed_by(HELD, str(tmp_path / "state.db")) == "allowed\n"
