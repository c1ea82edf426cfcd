"""A pydantic-ai agent with the tools of a host, over MCP; the model is scripted.

    python pydantic_ai_agent.py /path/to/toolcell /path/to/toolcell.toml

With a real model, `Agent("openai:...", toolsets=[toolset])`.
"""

from __future__ import annotations

import asyncio
import sys

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Ask for a calculation, then say what came of it."""
    for part in messages[-1].parts:
        if isinstance(part, ToolReturnPart):
            value = part.model_response_str()
            print(f"{part.tool_name}: {value}")
            return ModelResponse(parts=[TextPart(f"It is {value}.")])
    print("tools:", ", ".join(sorted(tool.name for tool in info.function_tools)))
    asked = ToolCallPart("calculate", {"expression": "6 * 7"})
    return ModelResponse(parts=[asked])


async def main(toolcell: str, config: str) -> None:
    """Start the server, and run the agent once."""
    arguments = ["serve", "--config", config, "--agent", "scout"]
    transport = StdioTransport(command=toolcell, args=arguments)
    toolset = MCPToolset(transport, init_timeout=30)
    agent = Agent(FunctionModel(answer), toolsets=[toolset])
    async with agent:
        result = await agent.run("What is 6 times 7?")
    print(result.output)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
