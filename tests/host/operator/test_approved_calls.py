"""A person who approves a call is told what became of it."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest

from toolcell.guard import Approve
from toolcell.host import Host, HostConfig
from toolcell.host.cli.guard.approved_call import call_after, call_line

pytestmark = pytest.mark.anyio


async def told(
    folder: Path,
    calls: int = 1,
    approvers: int = 1,
    wait: float = 60,
    *,
    gives_up: bool = False,
) -> list[str | None]:
    """Return what a person reads who approves calls, of which the budget lets one."""
    policy = {
        "agent_id": "a",
        "ask": [{"tools": ["calculate"], "approvers": approvers}],
        "budgets": [{"unit": "calls", "limit": 1, "window": "day"}],
    }
    config = HostConfig.model_validate(
        {
            "tools": {"builtin": ["arithmetic"]},
            "state": {"folder": folder},
            "approvals": {"wait_seconds": wait},
            "policies": [policy],
        }
    )
    lines: list[str | None] = []
    async with Host(config, environ={}) as host, anyio.create_task_group() as tasks:

        async def call(number: int) -> None:
            arguments = {"expression": f"6 * {number}"}
            await host.call("calculate", arguments, agent_id="a")

        for number in range(calls):
            tasks.start_soon(call, number)
        while len(waiting := await host.approvals.pending()) < calls:
            await anyio.sleep(0.01)
        if gives_up:
            tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            while gives_up and not host.executor.records.page(limit=1):
                await anyio.sleep(0.01)
            for request in waiting:
                while wait < 1 and request.is_waited_for(time.time()):
                    await anyio.sleep(0.01)
                await host.approvals.answer(request.id, Approve(approver="anna"))
                records = host.executor.records
                found = await call_after(host.approvals, records, request.id)
                lines.append(None if found is None else call_line(found))
        tasks.cancel_scope.cancel()
    return lines


async def test_an_approved_call_that_is_refused_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A slow machine has the time that it takes.
    monkeypatch.setattr(f"{call_after.__module__}._WAIT_SECONDS", 60)
    assert await told(tmp_path, calls=2) == [
        "the call has ended: ok",
        "the call was refused all the same: budget_exceeded by a calls/day",
    ]


async def test_a_call_that_nobody_waits_for_says_so(tmp_path: Path) -> None:
    line = "nobody waits for the call any more: made again, it runs"
    assert await told(tmp_path, wait=0.01) == [line]


async def test_a_caller_that_stopped_waiting_ended_no_approved_call(
    tmp_path: Path,
) -> None:
    [line] = await told(tmp_path, gives_up=True)
    assert line is not None
    assert "cancelled" not in line


async def test_nothing_is_told_before_all_people_approve(tmp_path: Path) -> None:
    assert await told(tmp_path, approvers=2) == [None]
