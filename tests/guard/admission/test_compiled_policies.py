"""Compiled policies are kept for later calls: how many, and until when."""

from __future__ import annotations

import pytest

from toolcell.core import ToolCall
from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.guard.admission import compiled_policy
from toolcell.guard.admission.compiled_policy import PolicySet

from ...support.guard.builders import call, refusal, spend


def calls_of(agents: int, tools: int) -> list[ToolCall]:
    return [
        ToolCall(id="1", name=f"tool{tool}", agent_id=f"agent{agent}")
        for agent in range(agents)
        for tool in range(tools)
    ]


def policies_of(agents: int) -> PolicySet:
    return PolicySet(
        AgentPolicy(agent_id=f"agent{number}", allow=["tool*"])
        for number in range(agents)
    )


def test_a_second_call_compiles_nothing_with_many_agents() -> None:
    policies, calls = policies_of(1_000), calls_of(1_000, 10)
    first = [policies.tool_policy(each) for each in calls]

    again = [policies.tool_policy(each) for each in calls]

    assert all(old is new for old, new in zip(first, again, strict=True))


def test_the_oldest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_policy, "_MAX_TOOL_POLICIES", 2)
    policies, (one, two, three) = policies_of(1), calls_of(1, 3)
    oldest, kept, newest = map(policies.tool_policy, (one, two, three))

    assert policies.tool_policy(two) is kept
    assert policies.tool_policy(three) is newest
    assert policies.tool_policy(one) is not oldest


@pytest.mark.anyio
async def test_a_changed_policy_is_in_force_at_the_next_call() -> None:
    guard = ActionGuard([AgentPolicy(agent_id="a", allow=["add"])])
    await spend(guard, call("add"))

    guard.replace_policies([AgentPolicy(agent_id="a", allow=["add"], deny=["add"])])

    assert (await refusal(guard, call("add")))["reason"] == "denied"
