"""A LangChain loop with the tools of a host, over MCP; the model is scripted.

    python langchain_agent.py /path/to/toolcell /path/to/toolcell.toml

With a real model, `ChatOpenAI(...).bind_tools(tools)` in its place.
"""

from __future__ import annotations

import asyncio
import sys

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools

ASKED = {"name": "calculate", "args": {"expression": "6 * 7"}, "id": "1"}
MODEL = GenericFakeChatModel(
    messages=iter(
        [
            AIMessage(content="", tool_calls=[{**ASKED, "type": "tool_call"}]),
            AIMessage(content="It is 42."),
        ]
    )
)


async def main(toolcell: str, config: str) -> None:
    """Start the server, and go on until the model asks for no more tools."""
    server = {
        "transport": "stdio",
        "command": toolcell,
        "args": ["serve", "--config", config, "--agent", "scout"],
    }
    client = MultiServerMCPClient({"toolcell": server})
    # One session for the whole loop: approvals, variables and files belong to it.
    async with client.session("toolcell") as session:
        tools = {tool.name: tool for tool in await load_mcp_tools(session)}
        print("tools:", ", ".join(sorted(tools)))
        messages: list[AnyMessage] = [HumanMessage("What is 6 times 7?")]
        while True:
            reply = await MODEL.ainvoke(messages)
            messages.append(reply)
            if not reply.tool_calls:
                break
            for call in reply.tool_calls:
                result = await tools[call["name"]].ainvoke(call)
                print(f"{call['name']}: {result.text}")
                messages.append(result)
    print(messages[-1].text)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
