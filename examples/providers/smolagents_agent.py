"""A CodeAgent whose programs run in a cell; its tools stay here, and it is scripted."""

from __future__ import annotations

from smolagents import CodeAgent, LogLevel, Model, tool
from smolagents.models import ChatMessage, MessageRole

from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.providers.smolagents import ToolcellExecutor

POLICY = AgentPolicy(
    agent_id="smolagents", allow=["run_python", "price_of", "final_answer"]
)
PROGRAMS = [
    "total = 2 * price_of('tea')\nprint(total)",
    "order('tea')",
    "final_answer(total)",
]


@tool
def price_of(item: str) -> int:
    """Return the price of an item in cents.

    Args:
        item: What is sold.
    """
    return {"tea": 21}[item]


@tool
def order(item: str) -> str:
    """Order an item.

    Args:
        item: What is sold.
    """
    return f"{item} is ordered"


class ScriptedModel(Model):
    """Says the next program of its script."""

    def generate(self, messages: list[ChatMessage], **options: object) -> ChatMessage:
        content = f"<code>\n{PROGRAMS.pop(0)}\n</code>"
        return ChatMessage(role=MessageRole.ASSISTANT, content=content)


with CodeAgent(
    [price_of, order],
    ScriptedModel(),
    executor=ToolcellExecutor(guard=ActionGuard([POLICY])),
    verbosity_level=LogLevel.OFF,
) as agent:
    print("answer:", agent.run("How much are two teas?"))
    for step in agent.memory.steps[1:]:
        if step.error:
            print("refused:", step.error.message)
