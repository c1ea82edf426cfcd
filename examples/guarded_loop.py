"""A plain agent loop with the guard in front of its functions; no model needed."""

from __future__ import annotations

import anyio

from toolcell.core import GuardError, ToolCall, ToolResult
from toolcell.guard import ActionGuard, AgentPolicy, CallFacts

TOOLS = {"add": lambda a, b: a + b, "shout": lambda text: text.upper()}
GUARD = ActionGuard(
    [
        AgentPolicy(
            agent_id="scout",
            allow=["add", {"tools": ["shout"], "when": {"text": {"max_length": 20}}}],
            max_calls_per_turn=3,
        )
    ]
)
ASKED = [
    ToolCall(id="1", name="add", arguments={"a": 1, "b": 2}, agent_id="scout"),
    ToolCall(id="2", name="shout", arguments={"text": "hello"}, agent_id="scout"),
    ToolCall(id="3", name="shout", arguments={"text": "x" * 99}, agent_id="scout"),
    ToolCall(id="4", name="rm", arguments={"path": "/"}, agent_id="scout"),
]
"""The calls that a model would ask for in one turn."""


async def run(call: ToolCall) -> ToolResult:
    """Return what came of a call; a refusal is a result that the model reads."""
    facts = CallFacts(cost={}, run_id="run-1", turn="1")
    try:
        async with GUARD.admit(call, facts) as permit:
            value = TOOLS[permit.call.name](**permit.call.arguments)
            await permit.settle(result=value)
    except GuardError as error:
        return ToolResult.failed(call.id, call.name, error, status="denied")
    return ToolResult(call_id=call.id, name=call.name, content=value)


async def main() -> None:
    """Answer every call of the turn."""
    for call in ASKED:
        result = await run(call)
        print(f"{result.name}: {result.to_text()}")


anyio.run(main)
