"""Programs in bash, and commands, call tools of a registry through the guard."""

from __future__ import annotations

import json

import pytest

from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.sandbox import Sandbox
from toolcell.tools import CodeExecutor, ToolRegistry, tool

pytestmark = pytest.mark.anyio


@tool
def price(item: str) -> int:
    """Say what an item costs, in cents."""
    return {"tea": 250}[item]


@tool
def order(item: str) -> str:
    """Order an item."""
    return item


def code_executor(sandbox: Sandbox) -> CodeExecutor:
    guard = ActionGuard([AgentPolicy(agent_id="ada", allow=["price"])])
    return CodeExecutor(sandbox, ToolRegistry([price, order]), guard=guard)


async def test_a_bash_program_is_guarded_as_any_other(sandbox: Sandbox) -> None:
    code = "tools price --item tea; tools order --item tea; echo $?"
    run = await code_executor(sandbox).execute(code, agent_id="ada", language="bash")

    assert run.stdout == "250\n3\n", run.stderr
    assert "guard.denied" in run.stderr
    assert [(call.call.name, call.result.status) for call in run.calls] == [
        ("price", "ok"),
        ("order", "denied"),
    ]
    assert all(call.call.agent_id == "ada" for call in run.calls)


async def test_a_command_is_guarded_as_its_agent(sandbox: Sandbox) -> None:
    code = code_executor(sandbox)
    async with sandbox.session(agent_id="ada") as session:
        calls = code.command_calls(agent_id="ada")
        words = "tools price --item tea; tools order --item tea"
        process = await session.exec(words, calls=calls)
        result = await process.wait()
        described = await session.exec("tools describe price", calls=calls)
        about = json.loads((await described.wait()).stdout)

    assert (result.exit_code, result.stdout) == (3, "250\n"), result.stderr
    assert about["description"] == "Say what an item costs, in cents."
    assert about["parameters"]["required"] == ["item"]
