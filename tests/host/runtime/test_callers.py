"""The audit log knows who called, over every door, and what became of credentials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError

from toolcell.core import ToolCall
from toolcell.guard import ActionGuard, AgentPolicy, AuditLog, called_by
from toolcell.tools import ConcurrentExecutor, ToolRegistry, tool

from ...support.mcp.served_hosts import (
    AUDITED,
    CONFIG,
    LEGACY,
    MODES,
    SUM,
    client_of,
    http_client,
    http_served,
    make_token,
    records,
    served,
)
from ..e2b.served_sandboxes import POLICIES
from ..e2b.served_sandboxes import served as sandboxes_served
from ..rest.served_rest import served as rest_served

pytestmark = pytest.mark.anyio


@pytest.mark.promise("JC4", "JC10")
@pytest.mark.parametrize("mode", MODES)
async def test_over_mcp_the_token_is_named_in_every_record(
    tmp_path: Path, mode: Any
) -> None:
    text = make_token(tmp_path)
    async with (
        http_served(tmp_path, text=AUDITED) as server,
        http_client(server.url, text, mode=mode) as client,
    ):
        await client.call_tool("calculate", SUM)
        with pytest.raises(MCPError, match="no such tool"):
            await client.call_tool("own_missing", {})

    told = records(tmp_path, "decision", "outcome")
    assert [each["tool"] for each in told] == ["calculate"] * 2 + ["own_missing"]
    assert {each["caller"] for each in told} == {f"token {text.split('_')[1]}"}


@pytest.mark.namespaces
@pytest.mark.promise("JC4")
async def test_over_rest_and_the_sandbox_api_too(tmp_path: Path) -> None:
    (tmp_path / "rest").mkdir()
    (tmp_path / "e2b").mkdir()
    audit = '[audit]\npath = "audit.jsonl"'
    async with rest_served(tmp_path / "rest", server=audit) as rest:
        await rest.post("/v1/calls", {"tool": "calculate", "arguments": SUM}, wait=30)
        await rest.post("/v1/calls", {"tool": "missing", "arguments": {}}, wait=30)
    told = records(tmp_path / "rest", "decision")
    assert [each["tool"] for each in told] == ["calculate", "missing"]
    name = f"token {rest.keys['a'].split('_')[1]}"
    assert {each["caller"] for each in told} == {name}
    async with sandboxes_served(tmp_path / "e2b", policies=audit + POLICIES) as service:
        await service.create()
    told = records(tmp_path / "e2b", "decision", "outcome")
    assert {each["caller"][:6] for each in told} == {"token "}


@pytest.mark.promise("JC4")
async def test_a_call_of_a_program_has_the_caller_of_the_program(
    tmp_path: Path,
) -> None:
    code = CONFIG.replace('"clock"]', '"clock", "code"]')
    async with (
        served(tmp_path, text=code + '[audit]\npath = "audit.jsonl"\n') as server,
        client_of(server, mode=LEGACY) as client,
    ):
        program = "tools.calculate(expression='1')"
        await client.call_tool("run_python", {"code": program})

    told = {
        record["tool"]: record["caller"] for record in records(tmp_path, "decision")
    }
    assert told == {"run_python": "test", "calculate": "test"}


async def test_callers_of_one_tool_at_once_are_not_mixed_up(tmp_path: Path) -> None:
    @tool
    async def work() -> str:
        return "done"

    policy = AgentPolicy(agent_id="a", allow=["*"])
    with AuditLog(tmp_path / "audit.jsonl") as audit:
        guard = ActionGuard([policy], audit=audit)
        executor = ConcurrentExecutor(ToolRegistry([work]), guard=guard)
        for number, name in enumerate(("anna", "eva", None, "anna")):
            call = ToolCall(id=str(number), name="work", arguments={}, agent_id="a")
            if name is None:
                await executor.call(call)
            else:
                with called_by(name):
                    await executor.call(call)

    told = [record.get("caller") for record in records(tmp_path, "decision")]
    assert told == ["anna", "eva", None, "anna"]
