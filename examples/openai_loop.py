"""An agent loop in the style of OpenAI's Chat Completions; the model is scripted.

With a real one, `MODEL.create` is `client.chat.completions.create` of the `openai`
package, and its reply `response.choices[0].message.model_dump()`.
"""

from __future__ import annotations

import json
from typing import Any

import anyio

from toolcell.core import Message, ToolCall
from toolcell.host import Host, HostConfig
from toolcell.tools import RunContext, to_openai

CONFIG = HostConfig.model_validate(
    {
        "tools": {"builtin": ["arithmetic", "code", "files"]},
        "policies": [
            {
                "agent_id": "scout",
                "allow": ["calculate", "run_python", "read_file"],
                "rate_limits": ["30/minute"],
            }
        ],
    }
)
MAX_TURNS = 10


def _asks(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


class ScriptedModel:
    """Says what a model might say, turn by turn."""

    def __init__(self) -> None:
        program = (
            "n = tools.calculate(expression='6 * 7')\nopen('n', 'w').write(str(n))"
        )
        self._turns = [
            _asks("1", "run_python", code=program),
            _asks("2", "read_file", path="n"),
            _asks("3", "run_shell", command="rm -rf /"),
            {"role": "assistant", "content": "It is 42."},
        ]

    async def create(self, messages: list[Any], tools: list[Any]) -> dict[str, Any]:
        """Return the next message."""
        return self._turns.pop(0)


MODEL = ScriptedModel()


def _call(asked: dict[str, Any]) -> ToolCall:
    # The agent is our word; the model's is only the rest.
    function = asked["function"]
    return ToolCall(
        id=asked["id"],
        name=function["name"],
        arguments=function["arguments"],
        agent_id="scout",
    )


async def main() -> None:
    """Go on until the model asks for no more tools."""
    messages: list[Any] = [{"role": "user", "content": "What is 6 times 7?"}]
    async with Host(CONFIG) as host:
        tools = [to_openai(tool) for tool in host.tools("scout")]
        for turn in range(MAX_TURNS):
            reply = await MODEL.create(messages=messages, tools=tools)
            messages.append(reply)
            asked = reply.get("tool_calls") or []
            if not asked:
                break
            run = RunContext(run_id="run-1", turn=str(turn), session="chat-1")
            calls = [_call(each) for each in asked]
            for result in await host.executor.execute(calls, run=run):
                print(f"{result.name}: {result.status}")
                messages.append(Message.tool(result).to_openai_format())
    print(messages[-1]["content"])


anyio.run(main)
