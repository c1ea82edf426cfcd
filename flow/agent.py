"""One turn of an agent, as a node: ask a model, make the calls it asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from pydantic import BaseModel

from toolcell.core import (
    FlowLimitError,
    InvalidInputError,
    Message,
    ModelProtocol,
    Role,
)
from toolcell.tools import Tool, to_openai

from .values.command import Command
from .values.context import NodeContext


def agent_turn(
    model: ModelProtocol,
    *,
    system: str = "",
    tools: Collection[str] | None = None,
    max_turns: int = 20,
    describe: Callable[[Tool], Any] = to_openai,
    stream: bool = False,
    **options: Any,
) -> Callable[[BaseModel, NodeContext], Awaitable[Command]]:
    """Return a node that asks a model once, and makes the calls that it asks for.

    The state needs `messages: Annotated[tuple[Message, ...], add_messages]`. If the
    model asks for tools they are called at once, each guarded and made once, and the
    node is its own next target: every turn is a step, and so a checkpoint. If it does
    not, the normal way is taken.

    Args:
        model: The client of the provider.
        system: The system message of each request; it is not stored in the state.
        tools: Names of the tools to offer; what may be called is the guard's matter.
            None: all that the agent may see.
        max_turns: Answers of the model since the last message of a user; default 20.
            When it is reached the node fails with FlowLimitError.
        describe: Exports a tool the way the provider takes it.
        stream: True: the model's text is emitted in parts as it comes. Default False.
        **options: For the model.
    """

    async def turn(state: BaseModel, ctx: NodeContext) -> Command:
        messages = _messages(state)
        if _turns(messages) >= max_turns:
            raise FlowLimitError(
                f"the model answered {max_turns} times without an end",
                hint="raise max_turns, or look at what it tries",
                details={"limit": "max_turns", "value": max_turns},
            )
        seen = [tool for tool in ctx.tools() if tools is None or tool.name in tools]
        offered = [describe(each) for each in seen]
        instructions = [Message.system(system)] if system else []
        response = await ctx.ask(
            model, [*instructions, *messages], offered or None, stream=stream, **options
        )
        answer = response.message
        if not answer.tool_calls:
            return Command(update={"messages": [answer]})
        results = await ctx.calls(answer.tool_calls)
        update = [answer, *map(Message.tool, results)]
        return Command(update={"messages": update}, goto=ctx.node)

    return turn


def _messages(state: BaseModel) -> Sequence[Message]:
    messages = getattr(state, "messages", None)
    if not isinstance(messages, tuple | list):
        raise InvalidInputError(
            "the state of an agent has no messages",
            hint="messages: Annotated[tuple[Message, ...], add_messages] = ()",
        )
    return messages


def _turns(messages: Sequence[Message]) -> int:
    """Return how often the model answered since its last input."""
    count = 0
    for message in reversed(messages):
        if message.role is Role.USER:
            break
        count += message.role is Role.ASSISTANT
    return count
