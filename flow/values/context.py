"""The context that a node gets besides the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from random import Random
from typing import Any, Protocol

from pydantic import JsonValue

from toolcell.core import Message, ModelProtocol, ModelResponse, ToolCall, ToolResult
from toolcell.tools import Tool


class Operations(Protocol):
    """The operations that a task does for its node, and records."""

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        call_id: str | None,
        *,
        key: str | None,
    ) -> ToolResult:
        """Make a call once."""
        ...

    async def calls(
        self, calls: Sequence[ToolCall], *, key: str | None
    ) -> list[ToolResult]:
        """Make several calls, each once."""
        ...

    async def once(
        self, function: Callable[..., Any], args: Sequence[Any], *, key: str | None
    ) -> JsonValue:
        """Call a function, and record the value that it returned."""
        ...

    async def ask(
        self,
        model: ModelProtocol,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        options: Mapping[str, Any],
        *,
        key: str | None,
        stream: bool,
    ) -> ModelResponse:
        """Ask a model, and record its answer."""
        ...

    async def emit(self, data: JsonValue) -> None:
        """Hand a value to the reader of the stream."""
        ...

    def tools(self) -> list[Tool]:
        """Return the tools to show the agent."""
        ...

    @property
    def replaying(self) -> bool:
        """True if the next operation without a key was recorded before."""
        ...


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    """One task, as its node sees it.

    A node that has asked a question, failed or lost its process runs again from its
    first line. Calls, answers of models and values that it got through its context are
    recorded: the node gets them again, and they are not done again.

    For that it has to begin the same operations in the same order in every run. An
    operation is known by its place among those that the node's own task begins, or by
    its `key`, which each needs in a task group of the node. Another operation in a
    recorded place raises ReplayError, and one beyond `FlowLimits.max_operations`
    FlowLimitError.
    """

    thread_id: str
    graph: str
    node: str
    step: int
    """The number of the step; 1 is the first of a thread."""

    task_id: str
    """The id of the task in its thread; the same in every run of the task."""

    attempt: int
    """The number of the attempt since the task was last started; 1 is the first."""

    agent_id: str | None
    """The agent of the calls; None: they name none."""

    started_at: datetime
    """The time at which the step began; the same in every run of the task."""

    seed: str
    operations: Operations

    @cached_property
    def random(self) -> Random:
        """A generator that is seeded by the task: the same numbers in every run."""
        return Random(self.seed)

    async def call(
        self,
        tool: str | ToolCall,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        key: str | None = None,
        **named: Any,
    ) -> ToolResult:
        """Make a call through the executor: validated, guarded, recorded, made once.

        A failed call is a result. If the process dies while it runs, and nobody can
        know whether it took effect, the thread pauses and asks a person.

        Args:
            tool: The tool's name, or a call of a model, whose id is in the result.
            arguments: Arguments by name; needed for names such as `key`.
            key: In a task group of the node: 1 to 64 characters, once per task.
            **named: Arguments by name.

        Raises:
            InvalidInputError: The flow has no executor, or the key is missing.
            ReplayError: Another call was recorded in this place.
        """
        if isinstance(tool, ToolCall):
            return await self.operations.call(
                tool.name, tool.arguments, tool.id, key=key
            )
        values = {**(arguments or {}), **named}
        return await self.operations.call(tool, values, None, key=key)

    async def calls(
        self,
        calls: Sequence[ToolCall | Mapping[str, Any]],
        *,
        key: str | None = None,
    ) -> list[ToolResult]:
        """Make several calls at once; results come in their order.

        Args:
            calls: As a model asked for them, or `{"name": ..., "arguments": {...}}`.
            key: As for `call`; one for all of them.

        Raises:
            InvalidInputError: As `call`.
            ReplayError: As `call`.
        """
        tool_calls = [
            call
            if isinstance(call, ToolCall)
            else ToolCall.model_validate({"id": str(number), **call})
            for number, call in enumerate(calls)
        ]
        return await self.operations.calls(tool_calls, key=key)

    async def once(
        self, function: Callable[..., Any], /, *args: Any, key: str | None = None
    ) -> JsonValue:
        """Call a function, and record the value that it returns.

        It is for values, such as the time or a file's text. If the process dies in the
        middle it is called again: effects belong in tools.

        Args:
            function: Async or not; one that is not runs where it is called.
            *args: The arguments of the function.
            key: As for `call`.

        Raises:
            InvalidInputError: The value has no JSON form; or as `call`.
            FlowLimitError: The value is larger than `FlowLimits.record_bytes`.
            ReplayError: Another operation was recorded in this place.
        """
        return await self.operations.once(function, args, key=key)

    async def ask(
        self,
        model: ModelProtocol,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        key: str | None = None,
        stream: bool = False,
        **options: Any,
    ) -> ModelResponse:
        """Ask a model, and record its answer.

        After a crash in the middle it is asked again; an answer that was given is
        never asked for again, even if the conversation is another one by then.

        Args:
            model: The client of the provider.
            messages: The conversation so far.
            tools: Tools that the model may ask for, as the provider takes them.
            key: As for `call`.
            stream: True: the text is emitted in parts as it comes. Default False.
            **options: The provider's own.

        Raises:
            ModelResponseError: It returned no `ModelResponse`.
            ReplayError: Another operation was recorded in this place.
        """
        return await self.operations.ask(
            model, messages, tools, options, key=key, stream=stream
        )

    async def emit(self, data: JsonValue) -> None:
        """Hand a value to the reader of the stream of this thread, if there is one.

        It is not stored. A node that runs again does not hand out again what came
        before the last operation that was recorded. While 64 events wait for a slow
        reader the node waits.

        Args:
            data: A JSON value of at most `FlowLimits.record_bytes`.

        Raises:
            InvalidInputError: It has no JSON form.
            FlowLimitError: It is too large.
        """
        await self.operations.emit(data)

    def tools(self) -> list[Tool]:
        """Return the tools that the agent may be shown; none without an executor."""
        return self.operations.tools()

    @property
    def replaying(self) -> bool:
        """True if the next operation without a key was recorded before."""
        return self.operations.replaying
