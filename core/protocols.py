"""Contracts of models, tools and checkpointers; they are not base classes.

`isinstance` checks only that the names exist; `check_tool` and its like in
`toolcell.tools` call the methods.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from .messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResponse:
    """A model's whole answer."""

    message: Message
    usage: Mapping[str, int | str] = field(default_factory=dict)
    """The amounts that it used, by unit: integers, but `usd` as decimal text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChunk:
    """A part of an answer as it comes."""

    text: str = ""
    response: ModelResponse | None = None
    """The whole answer; in the last chunk, and only there."""


@runtime_checkable
class ModelProtocol(Protocol):
    """Speaks to a language model."""

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> ModelResponse:
        """Return the answer to a conversation.

        Args:
            messages: The conversation so far.
            tools: Tools that the model may ask for, as the provider takes them.
            **options: Options of the provider.
        """
        ...

    def stream(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> AsyncIterator[ModelChunk]:
        """Yield the answer as it comes; the last chunk holds all of it."""
        ...


@runtime_checkable
class CallProtocol(Protocol):
    """The call that a tool runs for, as the tool sees it."""

    deadline: float | None
    """The time at which the call is stopped, of `time.monotonic()`; None: never."""

    @property
    def cancelled(self) -> bool:
        """True if the caller gave the call up."""
        ...


@runtime_checkable
class ToolProtocol(Protocol):
    """A tool that a model may ask to be called."""

    name: str
    description: str

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON Schema of the arguments."""
        ...

    def validate(self, arguments: Mapping[str, Any]) -> Any:
        """Return checked arguments, without running anything.

        Raises:
            ToolValidationError: They do not fit the schema.
        """
        ...

    async def invoke(self, arguments: Any, context: Any = None) -> Any:
        """Run with what `validate` returned, and with a `CallProtocol`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointerCapabilities:
    """The optional features of a checkpointer, all off by default."""

    search: bool = False
    metadata_query: bool = False
    vacuum: bool = False
    """It deletes what is old when asked to: `vacuum(older_than_days)`."""

    branching: bool = False
    """It copies a thread with its history: `copy_thread(source, target)`."""

    ttl: bool = False
    list_threads: bool = False
    """It lists the ids of threads: `list_threads(limit, pattern)`."""

    list_with_metadata: bool = False
    persistent_checkpoint_ids: bool = False
    """Its checkpoints outlive the process."""


@runtime_checkable
class CheckpointerProtocol(Protocol):
    """Stores the states of runs, by thread.

    Saved states are JSON values. `after` makes two writers safe: of two that save after
    the same checkpoint one raises CheckpointError.
    """

    @property
    def capabilities(self) -> CheckpointerCapabilities:
        """The optional features that this checkpointer has."""
        ...

    async def save(
        self,
        state: Any,
        thread_id: str,
        checkpoint_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        after: str | None = None,
    ) -> str:
        """Store a state, and return its checkpoint's id.

        Args:
            state: A JSON value; later changes by the caller are not stored.
            thread_id: The run.
            checkpoint_id: An id to use; None: a new one.
            metadata: Facts about it, JSON values.
            after: The id that must be the thread's latest; None: any.

        Raises:
            CheckpointError: Another checkpoint came in between.
            CheckpointSerializationError: The state cannot be written.
        """
        ...

    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> Any:
        """Return a state, the thread's latest without an id; None: there is none.

        Raises:
            CheckpointSerializationError: It cannot be read, or was changed.
        """
        ...

    async def list_checkpoints(
        self, thread_id: str, limit: int = 10, *, before: str | None = None
    ) -> list[str]:
        """Return ids, newest first.

        Args:
            thread_id: The run.
            limit: The largest number of them; when it is reached, ask again with
                `before`.
            before: The id that all returned checkpoints are older than; None: any.
        """
        ...
