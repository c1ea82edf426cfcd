"""What implementers of the protocols of `toolcell.core` have to show.

Call `check_model`, `check_tool` or `check_checkpointer` from a test, with an
implementation of your own; each raises AssertionError at the first broken promise.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from toolcell.core import (
    CallProtocol,
    CheckpointerCapabilities,
    CheckpointerProtocol,
    CheckpointError,
    CheckpointSerializationError,
    Message,
    ModelProtocol,
    ModelResponse,
    Role,
    ToolProtocol,
    ToolValidationError,
)


def accepts(method: Any, *names: str) -> bool:
    """Tell whether a method has these parameters, which isinstance does not see."""
    return set(names) <= set(inspect.signature(method).parameters)


async def check_model(model: Any) -> None:
    """Check one short conversation with a model."""
    assert isinstance(model, ModelProtocol)
    assert accepts(model.complete, "messages", "tools")
    assert accepts(model.stream, "messages", "tools")
    messages = [Message.user("Say something.")]
    response = await model.complete(messages, tools=None)
    assert isinstance(response, ModelResponse)
    assert response.message.role is Role.ASSISTANT
    chunks = [chunk async for chunk in model.stream(messages, tools=None)]
    assert [chunk.response is None for chunk in chunks[:-1]] == [True] * len(
        chunks[:-1]
    )
    assert isinstance(chunks[-1].response, ModelResponse)
    text = "".join(chunk.text for chunk in chunks)
    assert text == chunks[-1].response.message.content


async def check_tool(
    tool: Any, good: dict[str, Any], bad: dict[str, Any], context: Any
) -> Any:
    """Check a tool with arguments that fit and some that do not; return its result."""
    assert isinstance(tool, ToolProtocol)
    assert isinstance(context, CallProtocol)
    assert tool.name and tool.description
    assert accepts(tool.invoke, "arguments", "context")
    Draft202012Validator.check_schema(tool.parameters)
    assert tool.parameters["type"] == "object"
    with pytest.raises(ToolValidationError):
        tool.validate(bad)
    return await tool.invoke(tool.validate(good), context)


async def check_checkpointer(checkpointer: Any) -> None:
    """Check a checkpointer that is empty."""
    assert isinstance(checkpointer, CheckpointerProtocol)
    assert isinstance(checkpointer.capabilities, CheckpointerCapabilities)
    assert accepts(
        checkpointer.save, "state", "thread_id", "checkpoint_id", "metadata", "after"
    )
    await _check_saving(checkpointer)
    await _check_listing(checkpointer)
    await _check_comparing(checkpointer)


async def _check_saving(checkpointer: CheckpointerProtocol) -> None:
    assert await checkpointer.load("a") is None
    assert await checkpointer.load("a", "none") is None
    state = {"steps": [1, None, "ä"], "done": False}
    first = await checkpointer.save(state, "a", metadata={"by": "test"})
    state["steps"] = []
    second = await checkpointer.save({"steps": [2]}, "a", "mine")
    assert isinstance(first, str)
    assert second == "mine"
    kept = await checkpointer.load("a", first)
    assert kept == {"steps": [1, None, "ä"], "done": False}
    assert await checkpointer.load("a") == {"steps": [2]}
    assert await checkpointer.load("b") is None
    kept["steps"].clear()
    assert await checkpointer.load("a", first) != kept
    with pytest.raises(CheckpointSerializationError):
        await checkpointer.save({"open": object()}, "a")
    assert await checkpointer.list_checkpoints("a") == ["mine", first]


async def _check_listing(checkpointer: CheckpointerProtocol) -> None:
    ids = [await checkpointer.save({"n": n}, "many") for n in range(12)]
    newest_first = ids[::-1]
    assert len(set(ids)) == 12
    assert await checkpointer.list_checkpoints("none") == []
    assert await checkpointer.list_checkpoints("many") == newest_first[:10]
    assert await checkpointer.list_checkpoints("many", 3) == newest_first[:3]
    rest = await checkpointer.list_checkpoints("many", 20, before=newest_first[2])
    assert rest == newest_first[3:]


async def _check_comparing(checkpointer: CheckpointerProtocol) -> None:
    first = await checkpointer.save({"n": 1}, "compared")
    second = await checkpointer.save({"n": 2}, "compared", after=first)
    with pytest.raises(CheckpointError):
        await checkpointer.save({"n": 3}, "compared", after=first)
    assert await checkpointer.list_checkpoints("compared") == [second, first]
