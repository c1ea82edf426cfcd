"""Approvals in a file: processes that are killed, others that answer, and races."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from toolcell.core import ToolCall
from toolcell.guard import (
    ApprovalRequest,
    Approvals,
    ApprovalStore,
    Approve,
    CallFacts,
    Decision,
    Reject,
)

from ...support.child import Child
from ...support.concurrent_processes import all_at_once, start
from ...support.guard.patience import PATIENT

pytestmark = pytest.mark.anyio

ASKED = Decision(verdict="ask", reason="approval_required")
FACTS = CallFacts(run_id="r")

PARK = """
import sys, json, anyio
from toolcell.core import ToolCall
from toolcell.guard import Approvals, ApprovalStore, CallFacts, Decision

async def main(path, count):
    approvals = Approvals(ApprovalStore(path), answered_elsewhere=True)
    async def one(number):
        call = ToolCall(id="c", name="pay", arguments={"sum": number}, agent_id="a")
        asked = Decision(verdict="ask", reason="approval_required")
        answer = await approvals.ask(call, CallFacts(run_id="r"), asked)
        used = answer.approved and await approvals.use(answer)
        print(json.dumps([number, answer.status, used, answer.reason]), flush=True)
    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(one, number)

anyio.run(main, sys.argv[1], int(sys.argv[2]))
"""


@contextmanager
def parked(path: Path, count: int) -> Iterator[subprocess.Popen[str]]:
    """Run a process that asks for some calls and prints what comes of them."""
    process = Child(
        [sys.executable, "-I", "-c", PATIENT + PARK, str(path), str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def open_requests(approvals: Approvals, count: int) -> dict[object, str]:
    """Return ids of the open requests by their sum, once there are as many."""
    while len(found := await approvals.pending()) < count:
        await anyio.lowlevel.checkpoint()
    return {request.call.arguments["sum"]: request.id for request in found}


async def test_parked_calls_outlive_kill_9_and_are_answered_elsewhere(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state.db"
    with ApprovalStore(path) as store:
        desk = Approvals(store)
        with parked(path, 3) as process:
            first = await open_requests(desk, 3)
            process.send_signal(signal.SIGKILL)
            process.wait()
        await desk.answer(first[0], Approve(approver="anna"))
        await desk.answer(first[1], Reject(approver="anna", reason="not this one"))

        with parked(path, 3) as process:
            assert process.stdout is not None
            early = sorted(json.loads(process.stdout.readline()) for _ in range(2))
            assert await open_requests(desk, 1) == {2: first[2]}
            await desk.answer(first[2], Approve(approver="anna"))
            last = json.loads(process.stdout.readline())

        assert early == [
            [0, "approved", True, ""],
            [1, "rejected", False, "a person refused this call: not this one"],
        ]
        assert last == [2, "approved", True, ""]
        for number in (0, 2):
            call = ToolCall(id="c", name="pay", arguments={"sum": number}, agent_id="a")
            assert (await desk.peek(call, FACTS)).status == "unanswered"


async def test_processes_cannot_share_an_approval(tmp_path: Path) -> None:
    script = """
import sys, anyio
from toolcell.core import ToolCall
from toolcell.guard import Approvals, ApprovalStore, CallFacts

approvals = Approvals(ApprovalStore(sys.argv[1]))
call = ToolCall(id="c", name="pay", agent_id="a")
answer = anyio.run(approvals.peek, call, CallFacts())
print(answer.status, flush=True)
sys.stdin.readline()
print(anyio.run(approvals.use, answer))
"""
    path = tmp_path / "state.db"

    async def handler(_: ApprovalRequest) -> Approve:
        return Approve(approver="anna")

    with ApprovalStore(path) as store:
        call = ToolCall(id="c", name="pay", agent_id="a")
        await Approvals(store, handler=handler).ask(call, CallFacts(), ASKED)
    processes = [start(script, str(path)) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "approved\n"

    assert sorted(all_at_once(processes)) == ["False\n"] * 3 + ["True\n"]


async def test_a_forked_process_has_a_connection_of_its_own(tmp_path: Path) -> None:
    script = """
import os, sys, anyio
from toolcell.core import ToolCall
from toolcell.guard import *

call = ToolCall(id="c", name="pay", agent_id="a")
asked = Decision(verdict="ask", reason="approval_required")
store = ApprovalStore(sys.argv[1])
approvals = Approvals(store, handler=AutoApprove(by="ci"), profile="development")
anyio.run(approvals.ask, call, CallFacts(), asked)
def opened():
    places = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return sum(os.path.realpath(place) == sys.argv[1] for place in places)

before = opened()
child = os.fork()
facts = CallFacts(run_id="child" if child == 0 else "parent")
for number in range(20):
    answer = anyio.run(approvals.ask, call, facts, asked)
    assert anyio.run(approvals.use, answer)
if child == 0:
    os._exit(opened() - before - 1)
assert os.waitpid(child, 0)[1] == 0
print(anyio.run(approvals.peek, call, CallFacts()).approved)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", PATIENT + script, str(tmp_path / "state.db")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
