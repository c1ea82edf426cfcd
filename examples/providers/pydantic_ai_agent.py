"""A pydantic-ai agent whose shell is in a cell, and asks before it deletes."""

from __future__ import annotations

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.providers.pydantic_ai import ToolcellToolset, deferred_approvals

POLICY = AgentPolicy(
    agent_id="pydantic-ai",
    allow=["exec"],
    ask=[{"tools": ["exec"], "when": {"command": {"contains_word": "rm"}}}],
    deny=["write_file"],
)
SCRIPT = [
    ToolCallPart("exec", {"command": "echo 42 > answer; cat answer"}),
    ToolCallPart("write_file", {"path": "answer", "text": "43"}),
    ToolCallPart("exec", {"command": "rm answer && echo gone"}),
    TextPart("Done."),
]


def say(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Say the next part of the script."""
    return ModelResponse(parts=[SCRIPT.pop(0)])


tools = ToolcellToolset(guard=ActionGuard([POLICY], approvals=deferred_approvals()))
agent = Agent(
    FunctionModel(say), toolsets=[tools], output_type=[str, DeferredToolRequests]
)
first = agent.run_sync("Try it.")
[asked] = first.output.approvals
print("asked:", asked.args["command"])
ended = agent.run_sync(
    message_history=first.all_messages(),
    deferred_tool_results=DeferredToolResults(approvals={asked.tool_call_id: True}),
)
tools.close()
for message in ended.all_messages():
    for part in message.parts:
        if part.part_kind == "tool-return":
            said = part.content
            print(said["stdout"].strip() if isinstance(said, dict) else said)
print(ended.output)
