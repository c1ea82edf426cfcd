"""What tools say that they cost, and what results say is left."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolcell.core import InvalidInputError, Message, ToolCall, ToolError
from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.sandbox import Limits, SandboxConfig, SandboxManager
from toolcell.tools import (
    ConcurrentExecutor,
    RunContext,
    ToolContext,
    ToolRegistry,
    tool,
)
from toolcell.tools.builtin import code_tools, http_get_tool

pytestmark = pytest.mark.anyio

BUDGETS = [{"unit": "usd", "limit": "1.00"}, {"unit": "tokens", "limit": 1000}]


@tool(cost={"usd": "0.10", "tokens": 100})
async def search(context: ToolContext, parts: list[str], fail: bool = False) -> int:
    """Search, and pay for each part."""
    for usd in parts:
        context.report_cost(usd=usd)
    if fail:
        raise ToolError("nothing found")
    return len(parts)


def guard(**fields: Any) -> ActionGuard:
    policy = AgentPolicy(agent_id="a", allow=["*"], budgets=BUDGETS, **fields)
    return ActionGuard([policy])


def asked(number: int, *parts: str, **arguments: Any) -> ToolCall:
    given = {"parts": list(parts), **arguments}
    return ToolCall(id=str(number), name="search", agent_id="a", arguments=given)


async def left(judge: ActionGuard) -> dict[str, Any]:
    return dict(await judge.remaining("a", "search"))


@pytest.mark.promise("RG-23")
async def test_what_a_tool_says_is_charged_for_its_maximum() -> None:
    judge = guard()
    executor = ConcurrentExecutor(ToolRegistry([search]), guard=judge)

    told = await executor.call(asked(1, "0.0125", "0.000001"))
    assert told.usage["usd"] == "0.012501"
    assert await left(judge) == {"a usd/total": "0.987499", "a tokens/total": 900}
    # Nothing said: the maximum.
    await executor.call(asked(2))
    assert await left(judge) == {"a usd/total": "0.887499", "a tokens/total": 800}
    # More than the maximum is the truth.
    await executor.call(asked(3, "0.80"))
    assert await left(judge) == {"a usd/total": "0.087499", "a tokens/total": 700}
    assert (await executor.call(asked(4))).status == "denied"


@pytest.mark.promise("E-115")
@pytest.mark.promise("R68")
async def test_a_tool_that_fails_has_cost_what_it_said() -> None:
    judge = guard()
    executor = ConcurrentExecutor(ToolRegistry([search]), guard=judge)

    failed = await executor.call(asked(1, "0.02", fail=True))
    assert (failed.status, failed.usage["usd"]) == ("error", "0.02")
    assert (await left(judge))["a usd/total"] == "0.98"


@pytest.mark.promise("E-116", "RG-38")
@pytest.mark.parametrize("usd", ["-1", "nan", "inf", "1e9", "", 0.5, True, "1" * 11])
def test_a_cost_that_is_no_amount_is_refused(usd: Any) -> None:
    context = ToolContext(call_id="1", tool_name="search")
    with pytest.raises(InvalidInputError, match="usd"):
        context.report_cost(usd=usd)
    for tokens in (-1, 0.5, True, "3"):
        with pytest.raises(InvalidInputError, match="whole number"):
            context.report_cost(tokens=tokens)  # type: ignore[arg-type]


async def test_results_tell_what_is_left_if_asked_to() -> None:
    judge = guard(rate_limits=["5/minute"], max_concurrency=3)
    registry = ToolRegistry([search])
    executor = ConcurrentExecutor(registry, guard=judge, tell_remaining=True)

    result = await executor.call(asked(1, "0.25"))
    assert result.remaining == {
        "a 5 calls/60 s": 4,
        "a max_concurrency": 3,
        "a usd/total": "0.75",
        "a tokens/total": 900,
    }
    text = Message.tool(result).content
    assert text.splitlines()[0] == "1"
    said = text.splitlines()[1].removeprefix("[limits left: ").removesuffix("]")
    assert json.loads(said) == result.remaining
    failed = await executor.call(asked(2, "0.25", fail=True))
    assert json.loads(failed.to_text())["remaining"]["a usd/total"] == "0.50"
    denied = await executor.call(asked(3, "0.25", fail=1))
    assert denied.remaining == {}

    silent = ConcurrentExecutor(registry, guard=judge)
    assert (await silent.call(asked(4, "0.01"))).remaining == {}
    # A replay costs nothing and tells nothing.
    assert (await executor.call(asked(1, "0.25"))).remaining == {}


async def test_facts_are_of_the_tool_and_the_run_that_are_called() -> None:
    judge = ActionGuard(
        [
            AgentPolicy(
                agent_id="a",
                allow=["search"],
                deny=[{"tools": ["search"], "versions": ["2.0.0"]}],
                budgets=[{"unit": "calls", "limit": 1, "window": "run"}],
            )
        ]
    )
    registry = ToolRegistry([search])
    executor = ConcurrentExecutor(registry, guard=judge)
    one, two = RunContext(run_id="1"), RunContext(run_id="2")

    runs = [one, two, one, two, RunContext(run_id="1"), RunContext(run_id="3")]
    said = [
        (await executor.call(asked(number), run=run)).status
        for number, run in enumerate(runs)
    ]
    assert said == ["ok", "ok", "denied", "denied", "denied", "ok"]

    @tool(name="search", version="2.0.0")
    async def newer(parts: list[str]) -> int:
        return len(parts)

    registry.unregister("search")
    registry.register(newer)
    refused = await executor.call(asked(9), run=RunContext(run_id="9"))
    assert refused.error is not None
    assert refused.error.details["reason"] == "denied"


@tool(sandboxed=True, timeout=600)
def compute() -> int:
    """Compute in a cell."""
    return 1


@pytest.mark.promise("JA4")
@pytest.mark.parametrize(
    ("limits", "cpu_ms"),
    [
        ({"cpus": 2}, 10_000),
        ({"cpus": 0.5}, 5_000),
        ({"cpus": 1.5}, 10_000),
        ({"cpus": 4, "cpu_seconds": 3}, 3_000),
        ({"cpu_seconds": 60}, 5_000),
    ],
)
async def test_a_call_holds_no_more_than_its_limits_can_cost(
    limits: dict[str, Any], cpu_ms: int
) -> None:
    within = Limits(wall_seconds=5, output_bytes=1_000, **limits)
    sandbox = SandboxManager(SandboxConfig(backend="subprocess", limits=within))
    tools = [compute, *code_tools(sandbox), http_get_tool(["*"], max_bytes=2_000)]
    registry = ToolRegistry(tools)
    executor = ConcurrentExecutor(registry, guard=None, sandbox=sandbox)
    held = {}
    for each in tools:
        cost = executor._components.facts_of(each, RunContext()).cost
        assert cost is not None
        held[each.name] = cost["cpu_ms"], cost["bytes"]

    in_a_cell = dict.fromkeys(("compute", "run_python", "run_shell"), (cpu_ms, 2_000))
    assert held == {**in_a_cell, "http_get": (0, 2_000)}
