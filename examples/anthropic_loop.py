"""An agent loop in the style of Anthropic's Messages API; the model is scripted.

With a real one, `MODEL.create` is `client.messages.create` of the `anthropic` package,
and its reply `response.model_dump()`.
"""

from __future__ import annotations

from typing import Any

import anyio

from toolcell.core import Message, ToolCall
from toolcell.host import Host, HostConfig
from toolcell.tools import RunContext, to_anthropic

CONFIG = HostConfig.model_validate(
    {
        "tools": {"builtin": ["arithmetic", "clock"]},
        "policies": [
            {
                "agent_id": "scout",
                "allow": ["calculate"],
                "budgets": [{"unit": "calls", "limit": 2, "window": "run"}],
            }
        ],
    }
)
MAX_TURNS = 10


def _asks(*expressions: str) -> dict[str, Any]:
    blocks = [
        {
            "type": "tool_use",
            "id": f"toolu_{expression}",
            "name": "calculate",
            "input": {"expression": expression},
        }
        for expression in expressions
    ]
    return {"role": "assistant", "content": blocks, "stop_reason": "tool_use"}


class ScriptedModel:
    """Says what a model might say, turn by turn."""

    def __init__(self) -> None:
        said = [{"type": "text", "text": "6 * 7 is 42, and 1 / 0 is nothing."}]
        self._turns = [
            _asks("6 * 7", "1 / 0"),
            _asks("2 ** 10"),
            {"role": "assistant", "content": said, "stop_reason": "end_turn"},
        ]

    async def create(self, messages: list[Any], tools: list[Any]) -> dict[str, Any]:
        """Return the next message."""
        return self._turns.pop(0)


MODEL = ScriptedModel()


async def main() -> None:
    """Go on until the model asks for no more tools."""
    messages: list[Any] = [{"role": "user", "content": "What is 6 * 7, and 1 / 0?"}]
    async with Host(CONFIG) as host:
        tools = [to_anthropic(tool) for tool in host.tools("scout")]
        for turn in range(MAX_TURNS):
            reply = await MODEL.create(messages=messages, tools=tools)
            messages.append({"role": "assistant", "content": reply["content"]})
            if reply["stop_reason"] != "tool_use":
                break
            # The agent is our word; the model's is only the rest.
            calls = [
                ToolCall(
                    id=block["id"],
                    name=block["name"],
                    arguments=block["input"],
                    agent_id="scout",
                )
                for block in reply["content"]
                if block["type"] == "tool_use"
            ]
            run = RunContext(run_id="run-1", turn=str(turn))
            for result in await host.executor.execute(calls, run=run):
                print(f"{result.name}: {result.status}")
                messages.append(Message.tool(result).to_anthropic_format())
    print(messages[-1]["content"][0]["text"])


anyio.run(main)
