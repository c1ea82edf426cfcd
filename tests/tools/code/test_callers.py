"""Tools and rules say whether a model, a program or both may call."""

from __future__ import annotations

from typing import Any

import pytest

from toolcell.core import ConfigError, ToolCall
from toolcell.guard import ActionGuard, AgentPolicy, CallFacts
from toolcell.guard.spi import ANY_WAY
from toolcell.sandbox import SandboxManager
from toolcell.tools import (
    CodeExecutor,
    ConcurrentExecutor,
    RunContext,
    ToolRegistry,
    tool,
)

pytestmark = [pytest.mark.anyio, pytest.mark.promise("door-6")]

PROGRAM = """
found = {}
for name in ("plain", "only_model", "only_code"):
    try:
        found[name] = getattr(tools, name)()
    except (AttributeError, ToolError) as error:
        found[name] = getattr(error, "code", "no such tool")
found
"""


@tool
async def plain() -> int:
    """Anybody calls this."""
    return 1


@tool(callers={"model"})
async def only_model() -> int:
    """A model calls this, and no program."""
    return 2


@tool(callers={"code"})
async def only_code() -> int:
    """A program calls this, and no model."""
    return 3


TOOLS = [plain, only_model, only_code]
NAMES = [each.name for each in TOOLS]


async def outcomes_of_model(executor: ConcurrentExecutor) -> dict[str, Any]:
    calls = [ToolCall(id=name, name=name, agent_id="a") for name in NAMES]
    found = await executor.execute(calls)
    return {
        each.name: each.content if each.error is None else each.error.kind
        for each in found
    }


async def test_a_tool_says_who_may_call_it(sandbox: SandboxManager) -> None:
    guard = ActionGuard([AgentPolicy(agent_id="a", allow=["*"])])
    executor = ConcurrentExecutor(ToolRegistry(TOOLS), guard=guard)
    code = CodeExecutor(sandbox, executor.registry, executor=executor)

    result = await code.execute(PROGRAM, agent_id="a")

    assert result.value == {"plain": 1, "only_model": "no such tool", "only_code": 3}
    assert await outcomes_of_model(executor) == {
        "plain": 1,
        "only_model": 2,
        "only_code": "guard.denied",
    }
    assert [each.name for each in executor.tools("a")] == ["plain", "only_model"]
    assert "def only_code" in code.describe_tools("a")
    assert "def only_model" not in code.describe_tools("a")


async def test_a_rule_says_who_may_call(sandbox: SandboxManager) -> None:
    policy = AgentPolicy(
        agent_id="a",
        deny=[
            {"tools": ["only_model"], "via": "code"},
            {"tools": ["only_code"], "via": "model"},
        ],
        allow=["*"],
    )
    tools = [tool(each.function) for each in TOOLS]
    executor = ConcurrentExecutor(ToolRegistry(tools), guard=ActionGuard([policy]))
    code = CodeExecutor(sandbox, executor.registry, executor=executor)

    result = await code.execute(PROGRAM, agent_id="a")

    assert result.value == {"plain": 1, "only_model": "guard.denied", "only_code": 3}
    assert (await outcomes_of_model(executor))["only_code"] == "guard.denied"
    assert [each.name for each in executor.tools("a")] == ["plain", "only_model"]
    assert "def only_model" not in code.describe_tools("a")


async def test_a_program_does_not_choose_how_its_calls_come(
    sandbox: SandboxManager,
) -> None:
    """Attack: forged names on the bridge, and a run of the host that says `model`."""
    guard = ActionGuard([AgentPolicy(agent_id="a", allow=["*"])])
    executor = ConcurrentExecutor(ToolRegistry(TOOLS), guard=guard)
    code = CodeExecutor(sandbox, executor.registry, executor=executor)
    forged = """
import json, os
bridge = tools.plain._bridge
text = json.dumps({"name": "only_model", "args": [], "kwargs": {}, "via": "model"})
os.write(bridge._fd, b"%08x%08x%s" % (len(text), 1, text.encode()))
try:
    found = bridge._result(1)
except ToolError as error:
    found = error.code
found
"""
    run = RunContext(run_id="r", via="model")

    result = await code.execute(forged, agent_id="a", run=run)

    assert result.value == "not_found", result.stderr
    assert not result.calls


@pytest.mark.parametrize(
    ("rule", "via", "allowed"),
    [
        ({"tools": ["pay"], "via": "code"}, "code", True),
        ({"tools": ["pay"], "via": "code"}, "model", False),
        ({"tools": ["pay"], "via": "model"}, "code", False),
        ({"tools": ["pay"]}, "code", True),
    ],
)
async def test_a_guard_by_itself_knows_the_way(
    rule: dict[str, Any], via: Any, allowed: bool
) -> None:
    guard = ActionGuard([AgentPolicy(agent_id="a", allow=[rule])])
    call = ToolCall(id="1", name="pay", agent_id="a")

    for _ in range(2):  # the second time from the cache
        decision = await guard.decide(call, CallFacts(via=via))
        assert decision.allowed is allowed
    assert guard.may_allow("a", "pay", CallFacts(via=via)) is allowed

    closed = CallFacts(via=via, callers=frozenset(ANY_WAY - {via}))
    decision = await guard.decide(call, closed)
    assert (decision.reason, decision.rule) == ("denied", None)
    assert "only" in decision.detail
    assert not guard.may_allow("a", "pay", closed)


@pytest.mark.parametrize("callers", [set(), {"person"}, "model"])
def test_other_callers_are_refused_by_name(callers: Any) -> None:
    with pytest.raises(ConfigError, match="callers"):
        tool(callers=callers)(lambda: None)
