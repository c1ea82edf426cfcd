"""The contracts of the core, and that their conformance suite finds who breaks them."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from pydantic import BaseModel

from toolcell import tools
from toolcell.core import (
    CheckpointerCapabilities,
    CheckpointError,
    CheckpointSerializationError,
    Message,
    ModelChunk,
    ModelProtocol,
    ModelResponse,
    ToolCall,
    ToolError,
    ToolNotFoundError,
    ToolProtocol,
    ToolResult,
    ToolTimeoutError,
    ToolValidationError,
)
from toolcell.tools import JSONSchemaTool, Tool, ToolContext, tool
from toolcell.tools.spi import check_checkpointer, check_model, check_tool

from ..support.paths import ROOT

pytestmark = pytest.mark.anyio
CONTEXT = ToolContext(call_id="c", tool_name="t")


class Parrot:
    """A model that says one thing."""

    words = ("po", "lly")

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> ModelResponse:
        return ModelResponse(message=Message.assistant("polly"))

    async def stream(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> AsyncIterator[ModelChunk]:
        for word in self.words:
            yield ModelChunk(text=word)
        yield ModelChunk(response=await self.complete(messages, tools))


class Shelf:
    """A checkpointer in memory, as plain as can be."""

    capabilities = CheckpointerCapabilities(list_threads=True)

    def __init__(self) -> None:
        self.threads: dict[str, dict[str, str]] = {}

    async def save(
        self,
        state: Any,
        thread_id: str,
        checkpoint_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        after: str | None = None,
    ) -> str:
        kept = self.threads.setdefault(thread_id, {})
        if after not in (None, *list(kept)[-1:]):
            raise CheckpointError("another checkpoint came in between")
        try:
            text = json.dumps(state)
        except TypeError:
            raise CheckpointSerializationError("the state is not JSON") from None
        name = checkpoint_id or f"{thread_id}-{len(kept)}"
        kept[name] = text
        return name

    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> Any:
        kept = self.threads.get(thread_id, {})
        name = checkpoint_id or next(reversed(kept), "")
        return json.loads(kept[name]) if name in kept else None

    async def list_checkpoints(
        self, thread_id: str, limit: int = 10, *, before: str | None = None
    ) -> list[str]:
        ids = list(self.threads.get(thread_id, ()))[::-1]
        return ids[ids.index(before) + 1 if before else 0 :][:limit]


async def _says_nothing(self: Any, messages: Any, tools: Any = None) -> None:
    return None


async def _says_as_user(self: Any, messages: Any, tools: Any = None) -> ModelResponse:
    return ModelResponse(message=Message.user("polly"))


async def _streams_nothing(self: Any, messages: Any, tools: Any = None) -> Any:
    for _ in range(0):
        yield ModelChunk()


@pytest.mark.promise("LC-02", "LC-03", "LC-04")
async def test_a_model_conforms() -> None:
    await check_model(Parrot())


@pytest.mark.promise("LC-02")
@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"words": ("po",)}, "another answer"),
        ({"complete": lambda self, messages: None}, "does not take tools"),
        ({"complete": _says_nothing}, "no ModelResponse"),
        ({"complete": _says_as_user}, "not answer as assistant"),
        ({"stream": _streams_nothing}, "yields nothing"),
    ],
)
async def test_a_broken_model_is_found(broken: dict[str, Any], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        await check_model(type("Broken", (Parrot,), broken)())


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


class Adder(Tool):
    """Add."""

    name = "adder"

    async def execute(self, a: int, b: int) -> int:
        return a + b


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}


@pytest.mark.promise("LC-02", "LC-05")
@pytest.mark.parametrize(
    "subject",
    [
        tool(add),
        Adder(),
        JSONSchemaTool(lambda given: sum(given.values()), name="s", parameters=SCHEMA),
    ],
    ids=["function", "subclass", "schema"],
)
async def test_every_kind_of_tool_conforms(subject: Tool) -> None:
    checked: ToolProtocol = subject

    assert await check_tool(checked, {"a": 1, "b": 2}, {"a": "1"}, CONTEXT) == 3


def _strict(self: Any, arguments: Mapping[str, Any]) -> Any:
    if not isinstance(arguments["a"], int):
        raise ToolValidationError("a: an integer")
    return arguments


async def _returns_an_object(self: Any, arguments: Any, context: Any = None) -> Any:
    return object()


class Bare:
    """Has the names of a tool, and nothing behind them."""

    name = "bare"
    description = "Bare."
    parameters: Mapping[str, Any] = {"type": "object"}

    def validate(self, arguments: Mapping[str, Any]) -> Any:
        return arguments

    async def invoke(self, arguments: Any, context: Any = None) -> Any:
        return arguments


@pytest.mark.promise("LC-05")
@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({}, "accepts arguments that do not fit"),
        ({"parameters": {"type": "nothing"}}, "no JSON Schema"),
        ({"parameters": {"type": "array"}}, "not of an object"),
        ({"description": ""}, "no description"),
        ({"invoke": lambda self, arguments: None}, "does not take context"),
        ({"validate": _strict, "invoke": _returns_an_object}, "no JSON form"),
    ],
)
async def test_a_broken_tool_is_found(broken: dict[str, Any], why: str) -> None:
    subject = type("Broken", (Bare,), broken)()
    assert isinstance(subject, ToolProtocol)
    with pytest.raises(AssertionError, match=why):
        await check_tool(subject, {"a": 1}, {"a": "1"}, CONTEXT)


@pytest.mark.promise("RL-20", "LC-06", "LC-07", "LC-08", "LC-09", "A-19")
async def test_a_checkpointer_conforms() -> None:
    """LC-06, LC-07, LC-08, LC-09, A-19."""
    await check_checkpointer(Shelf())


class Forgetful(Shelf):
    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> Any:
        return await super().load(thread_id)


class Careless(Shelf):
    async def save(self, *arguments: Any, after: str | None = None, **rest: Any) -> str:
        return await super().save(*arguments, **rest)


class Upside(Shelf):
    async def list_checkpoints(self, *arguments: Any, **rest: Any) -> list[str]:
        return (await super().list_checkpoints(*arguments, **rest))[::-1]


class Silent(Shelf):
    capabilities = None  # type: ignore[assignment]


class Unpaged(Shelf):
    async def list_checkpoints(self, *arguments: Any, **rest: Any) -> list[str]:
        return await super().list_checkpoints(*arguments)


class Deaf(Shelf):
    async def load(self, thread_id: str) -> Any:  # type: ignore[override]
        return None


class Shared(Shelf):
    async def save(self, state: Any, thread_id: str, *rest: Any, **more: Any) -> str:
        return await super().save(state, "all", *rest, **more)

    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> Any:
        return await super().load("all", checkpoint_id)


@pytest.mark.promise("LC-06", "LC-07", "LC-08", "LC-09")
@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (Forgetful, "something else"),
        (Careless, "came in between"),
        (Upside, "newest first"),
        (Silent, "capabilities"),
        (Unpaged, "`before` does not go on"),
        (Shared, "share"),
        (Deaf, "load does not take checkpoint_id"),
    ],
)
async def test_a_broken_checkpointer_is_found(broken: type[Shelf], why: str) -> None:
    """LC-06, LC-07, LC-08, LC-09."""
    with pytest.raises(AssertionError, match=why):
        await check_checkpointer(broken())


@pytest.mark.promise("LC-02")
def test_a_name_is_not_enough() -> None:
    """Runtime checks see names only, so the suite calls what it finds."""

    class Names:
        complete = stream = int

    assert isinstance(Names(), ModelProtocol)


@pytest.mark.promise("OR-22", "GR-29", "GR-30")
def test_the_words_of_the_references_are_here() -> None:
    """OR-22, GR-29, GR-30: one set of names, calls and results as pydantic models."""
    for name in ("Tool", "FunctionTool", "tool"):
        assert hasattr(tools, name)
    for model in (ToolCall, ToolResult):
        assert issubclass(model, BaseModel)
    for kind in (ToolNotFoundError, ToolValidationError, ToolTimeoutError):
        assert issubclass(kind, ToolError)


@pytest.mark.promise("GA-15")
def test_the_core_stands_on_pydantic_alone() -> None:
    found = set()
    # For other rooms, and not loaded with the face: tasks and threads need anyio,
    # stores redis, gauges OpenTelemetry.
    names = ("detached.py", "event_loop.py", "redis_client.py", "gauges.py")
    internal = {ROOT / "core" / name for name in names}
    for path in {*(ROOT / "core").glob("*.py")} - internal:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and not node.level:
                found.add((node.module or "").partition(".")[0])
            elif isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}

    assert found - set(sys.stdlib_module_names) <= {"pydantic"}


@pytest.mark.promise("GA-24", "OR-23")
def test_no_sample_evaluates_text() -> None:
    """GA-24, OR-23: what people copy from the documents is safe to copy."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    blocks = [
        block
        for page in pages
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    ]
    blocks += [path.read_text() for path in (ROOT / "tools").rglob("*.py")]
    called = {
        node.func.id
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert len(blocks) > 10
    assert not called & {"eval", "exec", "compile", "__import__"}
