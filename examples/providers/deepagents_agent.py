"""A deep agent whose shell and files are in a cell; the model is scripted.

With a real model, `create_deep_agent("openai:...", backend=sandbox)`.
"""

from __future__ import annotations

from typing import Any

from deepagents import create_deep_agent
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, ToolMessage

from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.providers.deepagents import ToolcellSandbox

POLICY = AgentPolicy(
    agent_id="deepagents",
    allow=["exec", "read_file", "write_file"],
    deny=[{"tools": ["exec"], "when": {"command": {"contains": "shutdown"}}}],
)
COMMANDS = ["echo 'hello' > /tmp/note && cat /tmp/note", "shutdown now"]


class ScriptedModel(FakeMessagesListChatModel):
    """Says the next line of its script, with any tools."""

    def bind_tools(self, tools: Any, **options: Any) -> ScriptedModel:
        return self


def main() -> None:
    """Let the model run two commands, of which the guard refuses one."""
    asked = [
        AIMessage(
            "", tool_calls=[{"name": "execute", "args": {"command": each}, "id": each}]
        )
        for each in COMMANDS
    ]
    model = ScriptedModel(responses=[*asked, AIMessage("Done.")])
    with ToolcellSandbox(guard=ActionGuard([POLICY])) as sandbox:
        agent = create_deep_agent(model, backend=sandbox)
        ended = agent.invoke({"messages": [("user", "Try it.")]})
    for message in ended["messages"]:
        if isinstance(message, ToolMessage):
            print("execute:", message.text.splitlines()[0])
    print(ended["messages"][-1].text)


main()
