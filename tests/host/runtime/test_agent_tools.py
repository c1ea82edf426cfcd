"""What an agent is shown is what it could be allowed."""

from __future__ import annotations

import pytest

from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.tools import ConcurrentExecutor, ToolRegistry, tool

pytestmark = [pytest.mark.anyio, pytest.mark.promise("N16")]


@tool
def read() -> str:
    """Read."""
    return "text"


@tool
def send() -> str:
    """Send."""
    return "sent"


@tool
def delete_all() -> str:
    """Delete."""
    return "gone"


def names(guard: ActionGuard | None, agent_id: str | None) -> set[str]:
    executor = ConcurrentExecutor(ToolRegistry([read, send, delete_all]), guard=guard)
    return {each.name for each in executor.tools(agent_id)}


async def test_what_is_always_denied_is_not_shown() -> None:
    policy = AgentPolicy(
        agent_id="scout", allow=["read"], ask=["send"], deny=["delete_*"]
    )
    guard = ActionGuard([policy])

    assert names(guard, "scout") == {"read", "send"}
    assert names(guard, "nobody") == names(guard, None) == set()
    assert names(None, None) == {"read", "send", "delete_all"}
