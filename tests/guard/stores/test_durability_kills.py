"""Approvals, counters and the audit log while processes are killed at any moment."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import anyio
import pytest

from toolcell.core import InvalidInputError
from toolcell.guard import Approvals, ApprovalStore, Approve, AuditLog, verify_audit

from ...support.child import Child

WORKER = """
import sys, anyio
from toolcell.core import GuardDeniedError, ToolCall
from toolcell.guard import *

async def main(folder, name):
    approvals = Approvals(
        ApprovalStore(f"{folder}/approvals.db"), answered_elsewhere=True, wait_seconds=5
    )
    guard = ActionGuard(
        [AgentPolicy(agent_id="a", ask=["pay"])],
        store=SQLiteStore(f"{folder}/state.db"),
        audit=AuditLog(f"{folder}/audit.jsonl", run_records=1_000_000),
        approvals=approvals,
    )
    async def one(kind):
        for number in range(1_000_000):
            arguments = {"kind": kind, "number": number % 3}
            call = ToolCall(id="c", name="pay", arguments=arguments, agent_id="a")
            try:
                async with guard.admit(call, CallFacts(run_id="r")) as permit:
                    print(kind, number % 3, flush=True)
                    await permit.settle()
            except GuardDeniedError:
                pass
    async with anyio.create_task_group() as tasks:
        for kind in range(2):
            tasks.start_soon(one, kind)

anyio.run(main, *sys.argv[1:])
"""


def start(folder: Path, name: str) -> subprocess.Popen[str]:
    return Child(
        [sys.executable, "-I", "-c", WORKER, str(folder), name],
        stdout=subprocess.PIPE,
        text=True,
    )


def approve_all(folder: Path, over: threading.Event) -> None:
    """Say yes to whatever waits, until it is over."""

    async def main() -> None:
        with (
            ApprovalStore(folder / "approvals.db") as store,
            AuditLog(folder / "audit.jsonl") as log,
        ):
            approvals = Approvals(store, audit=log)
            while not over.is_set():
                for request in await approvals.pending():
                    try:
                        await approvals.answer(request.id, Approve(approver="anna"))
                    except InvalidInputError:
                        continue

    anyio.run(main)


@pytest.mark.full
def test_no_approval_is_used_twice_however_processes_die(tmp_path: Path) -> None:
    """Two processes share calls, approvals, counters and the log; one after another is
    killed at a random moment and replaced."""
    rng = random.Random(7)
    over, ran = threading.Event(), Counter[tuple[int, int]]()
    desk = threading.Thread(target=approve_all, args=(tmp_path, over))
    desk.start()
    workers = [start(tmp_path, "w"), start(tmp_path, "w")]
    lines: list[str] = []
    for turn in range(25):
        worker = workers[turn % 2]
        assert worker.stdout is not None
        lines += [worker.stdout.readline() for _ in range(rng.randrange(1, 12))]
        worker.kill()
        lines += worker.communicate()[0].splitlines(keepends=True)
        workers[turn % 2] = start(tmp_path, "w")
    for worker in workers:
        worker.kill()
        lines += worker.communicate()[0].splitlines(keepends=True)
    over.set()
    desk.join()
    for line in lines:
        if line.endswith("\n"):
            kind, number = line.split()
            ran[int(kind), int(number)] += 1

    AuditLog(tmp_path / "audit.jsonl").close()
    report = verify_audit(tmp_path / "audit.jsonl")
    assert report.ok, report
    used, of = Counter[str](), {}
    for text in (tmp_path / "audit.jsonl").read_bytes().splitlines():
        record = json.loads(text)
        if record["event"] == "approval_asked":
            arguments = record["arguments"]
            of[record["approval_id"]] = (arguments["kind"], arguments["number"])
        if record["event"] == "approval_used":
            used[record["approval_id"]] += 1
    # Written before the transaction ends, a use may be recorded and yet not be made.
    leave = Counter(of[approval] for approval in used)
    assert ran.total() > 50
    assert all(ran[call] <= leave[call] for call in ran), (ran, leave)
