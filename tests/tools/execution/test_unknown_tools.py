"""Calls of tools that an agent has not are known to the audit log."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from toolcell.core import ToolCall
from toolcell.guard import ActionGuard, AgentPolicy, AuditLog, verify_audit
from toolcell.tools import ConcurrentExecutor, ToolRegistry, tool

from ...support.sample_tools import add, call, executor

pytestmark = [pytest.mark.anyio, pytest.mark.promise("JC3")]


async def test_a_try_at_a_tool_that_is_not_there_is_in_the_audit_log(
    tmp_path: Path,
) -> None:
    @tool
    def delete(path: str) -> str:
        return path

    path = tmp_path / "audit.jsonl"
    policy = AgentPolicy(agent_id="a", allow=["delete"])
    with AuditLog(path) as audit:
        guard = ActionGuard([policy], audit=audit)
        executor = ConcurrentExecutor(ToolRegistry([delete]), guard=guard)
        for name, agent in (("drop_all", "a"), ("drop all\n", "a"), ("delete", "b")):
            call = ToolCall(id="1", name=name, arguments={"path": "/"}, agent_id=agent)
            assert not (await executor.call(call)).ok

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    told = [
        (line["agent_id"], line["tool"], line["verdict"], line["reason"])
        for line in lines
        if line["event"] == "decision"
    ]
    assert told == [
        ("a", "drop_all", "deny", "no_tool"),
        ("a", "drop all\n", "deny", "no_tool"),
        ("b", "delete", "deny", "no_policy"),
    ]
    assert not verify_audit(path).problems


async def test_a_log_that_cannot_be_written_refuses_the_call(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit.jsonl")
    guard = ActionGuard([AgentPolicy(agent_id="a", allow=["*"])], audit=audit)
    audit.close()
    executor = ConcurrentExecutor(ToolRegistry([]), guard=guard)

    result = await executor.call(ToolCall(id="1", name="x", arguments={}, agent_id="a"))
    assert result.error is not None
    assert result.error.kind.startswith(("guard", "audit"))


@pytest.mark.promise("R2")
@pytest.mark.parametrize("way", ["call", "execute"])
async def test_refused_calls_in_a_loop_let_others_run(way: str) -> None:
    made = executor(add)
    unknown = call("missing")
    others = 0

    async def count() -> None:
        nonlocal others
        while True:
            others += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        for _ in range(100):
            if way == "call":
                assert not (await made.call(unknown)).ok
            else:
                assert not (await made.execute([unknown]))[0].ok
        tasks.cancel_scope.cancel()

    assert others >= 50
