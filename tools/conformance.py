"""Checks for implementations of the protocols of `toolcell.core`.

Call these from a test, with your own implementation. Each raises AssertionError
at the first broken promise, and names it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import to_jsonable_python

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

_PAGE = 10
"""Checkpoints that a list has when nobody says how many."""


def _require(promise: object, broken: str) -> None:
    if not promise:
        raise AssertionError(broken)


def _takes(method: Callable[..., Any], *names: str) -> None:
    """Look at the parameters of a method, which isinstance does not see."""
    known = inspect.signature(method).parameters
    if any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values()
    ):
        return
    missing = [name for name in names if name not in known]
    _require(not missing, f"{method.__qualname__} does not take {', '.join(missing)}")


async def check_model(model: Any) -> None:
    """Check a model by one short conversation.

    Args:
        model: Should be a `ModelProtocol`. It is asked twice.

    Raises:
        AssertionError: It breaks a promise.
    """
    _require(isinstance(model, ModelProtocol), "it has no `complete` and `stream`")
    for method in (model.complete, model.stream):
        _takes(method, "messages", "tools")
    messages = [Message.user("Say something.")]
    response = await model.complete(messages, tools=None)
    _require(isinstance(response, ModelResponse), "`complete` returns no ModelResponse")
    _require(response.message.role is Role.ASSISTANT, "it does not answer as assistant")
    chunks = [chunk async for chunk in model.stream(messages, tools=None)]
    _require(chunks, "`stream` yields nothing")
    *parts, last = chunks
    early = any(chunk.response is not None for chunk in parts)
    _require(not early, "a chunk before the last holds a response")
    _require(isinstance(last.response, ModelResponse), "the last chunk holds none")
    text = "".join(chunk.text for chunk in chunks)
    _require(text == last.response.message.content, "the chunks are another answer")


async def check_tool(
    tool: Any, good: Mapping[str, Any], bad: Mapping[str, Any], context: Any
) -> Any:
    """Check a tool by one call, and return its result.

    Args:
        tool: Should be a `ToolProtocol`.
        good: Arguments that fit.
        bad: Arguments that do not.
        context: A `CallProtocol`, such as a `ToolContext`.

    Raises:
        AssertionError: It breaks a promise.
    """
    # Slow to import, and of use in tests alone.
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    _require(isinstance(tool, ToolProtocol), "it lacks a name of ToolProtocol")
    _require(isinstance(context, CallProtocol), "the context is no CallProtocol")
    _require(tool.name and tool.description, "it has no name or no description")
    _takes(tool.invoke, "arguments", "context")
    try:
        Draft202012Validator.check_schema(tool.parameters)
    except SchemaError as error:
        raise AssertionError("its parameters are no JSON Schema 2020-12") from error
    _require(tool.parameters.get("type") == "object", "they are not of an object")
    try:
        tool.validate(bad)
    except ToolValidationError:
        pass
    else:
        raise AssertionError("it accepts arguments that do not fit")
    result = await tool.invoke(tool.validate(good), context)
    try:
        to_jsonable_python(result)
    except ValueError as error:
        raise AssertionError("its result has no JSON form") from error
    return result


async def check_checkpointer(checkpointer: Any) -> None:
    """Check a checkpointer. It has to be empty, and is not when this ends.

    Args:
        checkpointer: Should be a `CheckpointerProtocol`.

    Raises:
        AssertionError: It breaks a promise.
    """
    is_one = isinstance(checkpointer, CheckpointerProtocol)
    _require(is_one, "it lacks a name of CheckpointerProtocol")
    known = isinstance(checkpointer.capabilities, CheckpointerCapabilities)
    _require(known, "its capabilities are no CheckpointerCapabilities")
    names = ("state", "thread_id", "checkpoint_id", "metadata", "after")
    _takes(checkpointer.save, *names)
    _takes(checkpointer.load, "thread_id", "checkpoint_id")
    _takes(checkpointer.list_checkpoints, "thread_id", "limit", "before")
    await _check_saving(checkpointer)
    await _check_listing(checkpointer)
    await _check_comparing(checkpointer)


async def _check_saving(checkpointer: CheckpointerProtocol) -> None:
    _require(await checkpointer.load("a") is None, "it is not empty")
    _require(await checkpointer.load("a", "none") is None, "it loads what is not there")
    state: dict[str, Any] = {"steps": [1, None, "ä"], "done": False}
    first = await checkpointer.save(state, "a", metadata={"by": "test"})
    state["steps"] = []
    second = await checkpointer.save({"steps": [2]}, "a", "mine")
    _require(isinstance(first, str), "an id is no text")
    _require(second == "mine", "it uses another id than the one given")
    loaded = await checkpointer.load("a", first)
    same = loaded == {"steps": [1, None, "ä"], "done": False}
    _require(same, "what was saved comes back as something else")
    latest = await checkpointer.load("a")
    _require(latest == {"steps": [2]}, "without an id it loads not the latest")
    _require(await checkpointer.load("b") is None, "threads share their checkpoints")
    loaded["steps"].clear()
    again = await checkpointer.load("a", first)
    _require(again != loaded, "a caller that loads a state can change it")
    try:
        await checkpointer.save({"open": object()}, "a")
    except CheckpointSerializationError:
        pass
    else:
        raise AssertionError("it accepts a state that cannot be written")
    ids = await checkpointer.list_checkpoints("a")
    _require(ids == ["mine", first], "the list is not what was saved, newest first")


async def _check_listing(checkpointer: CheckpointerProtocol) -> None:
    ids = [await checkpointer.save({"n": n}, "many") for n in range(_PAGE + 2)]
    newest = ids[::-1]
    _require(len(set(ids)) == len(ids), "ids are given twice")
    _require(await checkpointer.list_checkpoints("none") == [], "a thread from nowhere")
    found = await checkpointer.list_checkpoints("many")
    _require(found == newest[:_PAGE], "the list is not the ten newest, newest first")
    few = await checkpointer.list_checkpoints("many", 3)
    _require(few == newest[:3], "the limit does not hold")
    rest = await checkpointer.list_checkpoints("many", 20, before=few[-1])
    _require(rest == newest[3:], "`before` does not go on where a page ended")


async def _check_comparing(checkpointer: CheckpointerProtocol) -> None:
    first = await checkpointer.save({"n": 1}, "compared")
    second = await checkpointer.save({"n": 2}, "compared", after=first)
    try:
        await checkpointer.save({"n": 3}, "compared", after=first)
    except CheckpointError:
        pass
    else:
        raise AssertionError("it saves over a checkpoint that came in between")
    ids = await checkpointer.list_checkpoints("compared")
    _require(ids == [second, first], "the list is not what was saved, newest first")
