"""Programs of every tool find the placeholders of their agent's credentials."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import ToolCall
from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.sandbox import Network, SandboxConfig, SandboxManager
from toolcell.tools import CodeExecutor, ConcurrentExecutor, ToolRegistry, tool
from toolcell.tools.builtin import code_tools

pytestmark = [pytest.mark.anyio, pytest.mark.promise("boundary-6")]

CALLS: dict[str, dict[str, Any]] = {
    "run_python": {"code": "import os\nos.environ.get('API_TOKEN', 'none')"},
    "run_shell": {"command": "printf %s ${API_TOKEN-none}"},
    "look": {},
}


@tool(sandboxed=True)
def look() -> str:
    """Look for the token."""
    import os

    return os.environ.get("API_TOKEN", "none")


@pytest.fixture
async def executor(tmp_path: Path) -> AsyncIterator[ConcurrentExecutor]:
    (tmp_path / "token").write_text(secrets.token_hex(20))
    host = "api.example.test:443"
    credential: Any = {
        "name": "api",
        "value": f"file:{tmp_path}/token",
        "hosts": [host],
        "agents": ["a"],
        "variable": "API_TOKEN",
        "prefix": "sk-",
    }
    config = SandboxConfig(
        backend="subprocess",
        network=Network(mode="guarded", hosts=(host,), inspect=(host,)),
        credentials=(credential,),
    )
    registry = ToolRegistry([look])
    guard = ActionGuard([AgentPolicy(agent_id=each, allow=["*"]) for each in "ab"])
    async with SandboxManager(config) as sandbox:
        made = ConcurrentExecutor(registry, guard=guard, sandbox=sandbox)
        programs = CodeExecutor(sandbox, registry, executor=made)
        for added in code_tools(sandbox, executor=programs):
            registry.register(added)
        yield made


@pytest.mark.parametrize("name", CALLS)
async def test_a_program_has_the_placeholders_of_its_agent_alone(
    executor: ConcurrentExecutor, name: str
) -> None:
    found = []
    for agent in "ab":
        call = ToolCall(id=agent, name=name, arguments=CALLS[name], agent_id=agent)
        content: Any = (await executor.call(call)).content
        if isinstance(content, dict):
            content = content["stdout"] or content["value"]
        found.append(content[:3])

    assert found == ["sk-", "non"]
