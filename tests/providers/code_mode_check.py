"""Gives agents of three frameworks the tools of code mode; their models are scripted.

Prints what each agent read, and what really ran.
"""

from __future__ import annotations

import json
from typing import Any

import anyio
from agents import Agent as OpenAIAgent
from agents import RunConfig, Runner
from agents.items import ToolCallOutputItem
from agents.testing import ScriptedModel, assistant_message, function_call
from langchain_core.messages import ToolMessage
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.providers.langchain import code_mode_toolset as langchain_tools
from toolcell.providers.openai_agents import code_mode_toolset as openai_tools
from toolcell.providers.pydantic_ai import CodeModeToolset, deferred_approvals
from toolcell.sandbox import SandboxConfig, SandboxManager
from toolcell.tools import CodeExecutor, ConcurrentExecutor, ToolRegistry, tool
from toolcell.tools.builtin import code_mode_tools

CALLS = [
    ("search_tools", {"query": "item price"}),
    ("describe_tools", {"names": ["refund"]}),
    (
        "run_code",
        {
            "code": """
def said(name):
    try: return getattr(tools, name)("tea")
    except ToolError as error: return [error.kind, bool(error.retry_after)]
[said(name) for name in ("price", "refund", "order", "price")]
"""
        },
    ),
    ("run_code", {}),
]
NO_JSON = ("run_code", '{"code": "')
KINDS = ("tool.validation", "json_invalid")
ordered: list[str] = []


@tool
async def price(item: str) -> float:
    """Say the price of an item."""
    return 2.5


@tool
async def refund(item: str) -> str:
    """Give money back."""
    raise AssertionError(item)


@tool
async def order(item: str) -> str:
    """Order an item."""
    ordered.append(item)
    return "ordered"


def executor_of(
    sandbox: SandboxManager, agent_id: str, *asked: str
) -> ConcurrentExecutor:
    """Return an executor with code mode, whose approvals are those of pydantic-ai."""
    policy = AgentPolicy(
        agent_id=agent_id,
        allow=["price", "@code_mode"],
        ask=["order", *asked],
        deny=["refund"],
        rate_limits=[{"limit": "1/hour", "tools": ["price"]}],
    )
    registry = ToolRegistry([price, refund, order])
    guard = ActionGuard([policy], approvals=deferred_approvals())
    executor = ConcurrentExecutor(registry, guard=guard)
    code = CodeExecutor(sandbox, registry, executor=executor)
    tools = code_mode_tools(sandbox, executor=code, asks_without_session=True)
    registry.register_many(tools)
    return executor


def show(framework: str, read: list[str]) -> None:
    """Print the first line of each answer, and the end of the program."""
    searched, described, ran, *failed = read
    value = json.loads(ran)["value"]
    kinds = [
        next((kind for kind in KINDS if kind in each), each[:60]) for each in failed
    ]
    print(framework, searched.splitlines()[0], described, value, *kinds, ordered)


async def with_pydantic_ai(sandbox: SandboxManager) -> None:
    """An approval of `run_code` approves no call of its program."""
    script = [*(ToolCallPart(*each) for each in [*CALLS, NO_JSON]), TextPart("Done.")]

    def say(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[script.pop(0)])

    executor = executor_of(sandbox, "pydantic-ai", "run_code")
    agent = Agent(
        FunctionModel(say),
        toolsets=[CodeModeToolset(executor)],
        output_type=[str, DeferredToolRequests],
    )
    ended = await agent.run("Try it.")
    asked = 0
    while isinstance(ended.output, DeferredToolRequests):
        asked += 1
        approved = {approval.tool_call_id: True for approval in ended.output.approvals}
        ended = await agent.run(
            message_history=ended.all_messages(),
            deferred_tool_results=DeferredToolResults(approvals=approved),
        )
    read = [
        part.content if isinstance(part.content, str) else json.dumps(part.content)
        for message in ended.all_messages()
        for part in message.parts
        if part.part_kind in ("tool-return", "retry-prompt")
    ]
    print("asked:", asked)
    show("pydantic-ai:", read)


async def with_openai_agents(sandbox: SandboxManager) -> None:
    """A run of the SDK's own runner."""
    model = ScriptedModel(
        [
            *(
                [function_call(name, given, call_id=f"call-{number}")]
                for number, (name, given) in enumerate([*CALLS, NO_JSON])
            ),
            [assistant_message("Done.")],
        ]
    )
    tools = openai_tools(executor_of(sandbox, "openai-agents"))
    agent = OpenAIAgent(name="worker", model=model, tools=tools)
    ended = await Runner.run(
        agent, "Try it.", run_config=RunConfig(tracing_disabled=True)
    )
    read = [
        str(item.output)
        for item in ended.new_items
        if isinstance(item, ToolCallOutputItem)
    ]
    show("openai-agents:", read)


async def with_langchain(sandbox: SandboxManager) -> None:
    """Calls as LangChain's agents make them."""
    tools = langchain_tools(executor_of(sandbox, "langchain"))
    by_name = {each.name: each for each in tools}
    read: list[ToolMessage] = []
    for name, given in CALLS:
        call: Any = {"name": name, "args": given, "id": "1", "type": "tool_call"}
        read.append(await by_name[name].ainvoke(call))
    assert [each.status for each in read] == ["success"] * 3 + ["error"]
    show("langchain:", [each.text for each in read])


async def main() -> None:
    """Run all three in cells of one manager."""
    async with SandboxManager(SandboxConfig(backend="subprocess")) as sandbox:
        await with_pydantic_ai(sandbox)
        await with_openai_agents(sandbox)
        await with_langchain(sandbox)


anyio.run(main)
