"""The client that the conformance runner starts: `client.py URL`.

It opens an `MCPToolset` and calls each tool once, with values made from its schema.
"""

from __future__ import annotations

import sys
from typing import Any

import anyio

from toolcell.tools import ConcurrentExecutor, MCPToolset, RunContext, ToolRegistry
from toolcell.tools.spi import MCPEndpoint, UserAnswer, UserQuestion

VALUES: dict[str, Any] = {"number": 5, "integer": 5, "string": "x", "boolean": True}


async def take_defaults(question: UserQuestion) -> UserAnswer:
    fields = question.fields["properties"].items()
    content = {name: each["default"] for name, each in fields if "default" in each}
    return UserAnswer(action="accept", content=content)


async def main(url: str) -> None:
    server = MCPEndpoint(url=url)
    async with MCPToolset("peer", server, pins=None, elicitation=True) as peer:
        executor = ConcurrentExecutor(ToolRegistry(peer.tools), guard=None)
        for tool in peer.tools:
            properties = tool.parameters["properties"]
            arguments = {
                name: VALUES.get(properties[name].get("type", "string"))
                for name in tool.parameters.get("required", properties)
            }
            call = {"id": tool.name, "name": tool.name, "arguments": arguments}
            run = RunContext(ask_user=take_defaults)
            result = await executor.call(call, run=run)
            print(tool.name, result.status, result.to_text()[:200])


if __name__ == "__main__":
    anyio.run(main, sys.argv[-1])
