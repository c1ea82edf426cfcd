"""An agent loop whose every turn is kept: a graph of one node. The model is scripted.

With a real one, `Scripted` is whatever implements `ModelProtocol`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import anyio
from pydantic import BaseModel

from toolcell.core import Message, ModelResponse, Role, ToolCall
from toolcell.flow import START, Flow, Graph, add_messages, agent_turn
from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.tools import ConcurrentExecutor, ToolRegistry
from toolcell.tools.builtin import calculate


class Talk(BaseModel):
    """The state of the loop."""

    messages: Annotated[tuple[Message, ...], add_messages] = ()


class Scripted:
    """Asks for two calls, then tells what they returned."""

    async def complete(
        self, messages: Sequence[Message], tools: Any = None, **options: Any
    ) -> ModelResponse:
        """Return the next answer."""
        results = [each.content for each in messages if each.role is Role.TOOL]
        if len(results) < 2:
            expression = ("6 * 7", "42 + 1")[len(results)]
            arguments = {"expression": expression}
            call = ToolCall(
                id=f"c{len(results)}", name="calculate", arguments=arguments
            )
            return ModelResponse(message=Message.assistant("", [call]))
        return ModelResponse(message=Message.assistant(f"They are {results}."))


graph = Graph(Talk, name="talk")
graph.node(agent_turn(Scripted(), max_turns=5), name="agent")
graph.edge(START, "agent")


async def main() -> None:
    """Run one turn of a conversation."""
    guard = ActionGuard([AgentPolicy(agent_id="scout", allow=["calculate"])])
    executor = ConcurrentExecutor(ToolRegistry([calculate]), guard=guard)
    flow = Flow(graph, executor=executor, agent_id="scout")
    result = await flow.run({"messages": [Message.user("Calculate.")]}, "talk-1")
    for message in result.unwrap().messages:
        print(f"{message.role}: {message.content}")
    print(f"{len(await flow.history('talk-1'))} checkpoints")


anyio.run(main)
