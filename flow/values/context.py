"""What a node has in its hands besides the state."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from pydantic import JsonValue

from toolcell.core import Message, ModelProtocol, ModelResponse, ToolCall, ToolResult
from toolcell.tools import Tool


class Operations(Protocol):
    """What a task does for its node, and writes down."""

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
        """Call a function, and keep what it returned."""
        ...

    async def ask(
        self,
        model: ModelProtocol,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        options: Mapping[str, Any],
        *,
        key: str | None,
    ) -> ModelResponse:
        """Ask a model, and keep its answer."""
        ...

    def tools(self) -> list[Tool]:
        """Return the tools to show the agent."""
        ...

    @property
    def replaying(self) -> bool:
        """Whether the next operation is one that was written down."""
        ...


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    """One task, as its node sees it.

    What a node does through this is written down, and is not done again when the node
    runs again. Operations are known by their place among those that the node's own
    task begins; in a task group of the node each needs a `key`.
    """

    thread_id: str
    graph: str
    node: str
    step: int
    task_id: str
    attempt: int
    """Which try of this process it is; 1 is the first."""

    agent_id: str | None
    started_at: datetime
    """When the step began: the same in every run of the task."""

    random: random.Random
    """Seeded by the task: the same numbers in every run of it."""

    operations: Operations

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
            arguments: By name; for names that are taken, such as `key`.
            key: In a task group of the node: 1 to 64 characters, once per task.
            **named: Arguments by name.

        Raises:
            InvalidInputError: The flow has no executor, or the key is missing.
            ReplayError: Another call was written down in this place.
        """
        if isinstance(tool, ToolCall):
            return await self.operations.call(
                tool.name, tool.arguments, tool.id, key=key
            )
        given = {**(arguments or {}), **named}
        return await self.operations.call(tool, given, None, key=key)

    async def calls(
        self, calls: Sequence[ToolCall], *, key: str | None = None
    ) -> list[ToolResult]:
        """Make several calls at once; results come in their order.

        Args:
            calls: As a model asked for them.
            key: As for `call`; one for all of them.

        Raises:
            InvalidInputError: As `call`.
            ReplayError: As `call`.
        """
        return await self.operations.calls(calls, key=key)

    async def once(
        self, function: Callable[..., Any], /, *args: Any, key: str | None = None
    ) -> JsonValue:
        """Call a function, and write down what it returns.

        It is for values, such as the time or a file's text. If the process dies in the
        middle it is called again: effects belong in tools.

        Args:
            function: Async or not; one that is not runs where it is called.
            *args: What it takes.
            key: As for `call`.

        Raises:
            InvalidInputError: What it returned has no JSON form; or as `call`.
            ReplayError: Another operation was written down in this place.
        """
        return await self.operations.once(function, args, key=key)

    async def ask(
        self,
        model: ModelProtocol,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        key: str | None = None,
        **options: Any,
    ) -> ModelResponse:
        """Ask a model, and write its answer down.

        After a crash in the middle it is asked again; an answer that was given is
        never asked for again, even if the conversation is another one by then.

        Args:
            model: What speaks to the provider.
            messages: The conversation so far.
            tools: Tools that the model may ask for, as the provider takes them.
            key: As for `call`.
            **options: The provider's own.

        Raises:
            ModelResponseError: It returned no `ModelResponse`.
            ReplayError: Another operation was written down in this place.
        """
        return await self.operations.ask(model, messages, tools, options, key=key)

    def tools(self) -> list[Tool]:
        """Return the tools that the agent may be shown; none without an executor."""
        return self.operations.tools()

    @property
    def replaying(self) -> bool:
        """Whether the next operation is one that was written down."""
        return self.operations.replaying
