"""The operations of a node: each is recorded, and is not done again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import anyio
from pydantic import JsonValue

from toolcell.core import (
    FlowLimitError,
    InvalidInputError,
    Message,
    ModelProtocol,
    ModelResponse,
    ModelResponseError,
    ToolCall,
    ToolResult,
)
from toolcell.tools import Tool

from ..stores.records import Finish
from ..values.events import Emitted
from ..values.interrupt import InterruptException
from ..values.json_values import json_bytes, jsonable
from .calls import Calls
from .components import RunComponents
from .journal import TaskJournal
from .questions import Questions

_LONGEST_KEY = 64


class TaskOperations:
    """The operations of one attempt of a task, by their places.

    Args:
        parts: The parts that the tasks of the thread share.
        journal: The recorded operations of the task.
        questions: The questions of the attempt.
        calls: The calls of the task.
        own_task: The id of the node's own task; None: it runs in a thread.
    """

    def __init__(
        self,
        parts: RunComponents,
        journal: TaskJournal,
        questions: Questions,
        calls: Calls,
        own_task: int | None,
    ) -> None:
        self._parts = parts
        self._journal = journal
        self._questions = questions
        self._calls = calls
        self._own_task = own_task
        self._next = 0
        self._keys: set[str] = set()
        self._ahead = set(journal.places())
        """The operations of earlier runs of the node that this one has yet to reach."""

    def place(self, key: str | None) -> str:
        """Return the place of the operation that begins now.

        Raises:
            InvalidInputError: The key is missing, taken or no key.
            FlowLimitError: There were as many as a task may have.
        """
        if self._questions.asked:
            # The node caught the exception: nothing more is done before the answer.
            raise InterruptException(self._questions.asked[0])
        limit = self._parts.flow.limits.max_operations
        if self._next + len(self._keys) >= limit:
            raise FlowLimitError(
                f"a task has more than {limit} operations",
                hint="make it several tasks, or raise max_operations",
                details={"limit": "max_operations", "value": limit},
            )
        if key is not None:
            return self._keyed(key)
        if not self._is_own_task():
            raise InvalidInputError(
                "an operation in a task group of a node needs a key",
                hint='pass key="...": the order of tasks is not the same in each run',
            )
        self._next += 1
        place = str(self._next - 1)
        return self._mark_reached(place)

    def _keyed(self, key: str) -> str:
        if (
            not 0 < len(key) <= _LONGEST_KEY
            or not key.isprintable()
            or key in (self._keys)
        ):
            raise InvalidInputError(
                f"{key[:_LONGEST_KEY]!r} cannot be the key of an operation",
                hint="1 to 64 printable characters, once in each task",
            )
        self._keys.add(key)
        return self._mark_reached(f"key:{key}")

    def _mark_reached(self, place: str) -> str:
        below = f"{place}/"
        self._ahead = {
            each for each in self._ahead if each != place and not each.startswith(below)
        }
        return place

    def _is_own_task(self) -> bool:
        if self._own_task is None:
            return True
        try:
            return anyio.get_current_task().id == self._own_task
        except RuntimeError:
            # A function that the node runs in a worker thread, and waits for.
            return True

    @property
    def replaying(self) -> bool:
        """True if the next operation without a key was recorded before."""
        return self._journal.knows(str(self._next))

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        call_id: str | None,
        *,
        key: str | None,
    ) -> ToolResult:
        """Make a call once."""
        result = await self._calls.make(self.place(key), name, arguments, call_id)
        if result is None:
            raise InterruptException(self._questions.asked[0])
        return result

    async def calls(
        self, calls: Sequence[ToolCall], *, key: str | None
    ) -> list[ToolResult]:
        """Make several calls at once, each of them once."""
        place = self.place(key)
        results: list[ToolResult | None] = [None] * len(calls)

        async def make(index: int, call: ToolCall) -> None:
            op = f"{place}/{index}"
            if call.malformed is not None:
                results[index] = await self._calls.refuse_malformed(op, call)
                return
            results[index] = await self._calls.make(
                op, call.name, call.arguments, call.id
            )

        async with anyio.create_task_group() as group:
            for index, call in enumerate(calls):
                group.start_soon(make, index, call)
        if self._questions.asked:
            raise InterruptException(self._questions.asked[0])
        return [result for result in results if result is not None]

    async def once(
        self, function: Callable[..., Any], args: Sequence[Any], *, key: str | None
    ) -> JsonValue:
        """Call a function, and record the value that it returned."""
        op = self.place(key)
        name = getattr(function, "__qualname__", type(function).__qualname__)
        self._journal.check(op, "once", name, None)
        done = self._journal.finished.get(op)
        if done is not None:
            return done.value
        returned = function(*args)
        if inspect.isawaitable(returned):
            returned = await returned
        try:
            value: JsonValue = jsonable(returned)
        except ValueError as error:
            raise InvalidInputError(
                f"what {name} returned has no JSON form: {error}",
                hint="return values that JSON has",
            ) from None
        await self._keep(op, "once", name, value)
        return value

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
        op, name = self.place(key), type(model).__qualname__
        self._journal.check(op, "model", name, None)
        done = self._journal.finished.get(op)
        if done is not None:
            recorded: Any = done.value
            message = Message.model_validate(recorded["message"])
            return ModelResponse(message=message, usage=recorded["usage"])
        response: object = (
            await self._streamed(model, messages, tools, options)
            if stream
            else await model.complete(messages, tools, **options)
        )
        if not isinstance(response, ModelResponse):
            raise ModelResponseError(
                f"{name} returned no ModelResponse",
                hint="toolcell.tools.check_model shows what is wrong with a model",
            )
        message = response.message
        value = jsonable({"message": message, "usage": dict(response.usage)})
        await self._keep(op, "model", name, value)
        return response

    async def _streamed(
        self,
        model: ModelProtocol,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        options: Mapping[str, Any],
    ) -> ModelResponse | None:
        """Return the answer of a model whose text is emitted as it comes."""
        response = None
        async for chunk in model.stream(messages, tools, **options):
            if chunk.text:
                await self._emit(chunk.text)
            response = chunk.response or response
        return response

    async def emit(self, data: JsonValue) -> None:
        """Hand a value to the reader, unless an earlier run of the node did so."""
        try:
            value: JsonValue = jsonable(data)
        except ValueError as error:
            raise InvalidInputError(
                f"an emitted value has no JSON form: {error}",
                hint="emit texts, numbers, lists and dicts",
            ) from None
        check_size("record_bytes", self._parts.flow.limits.record_bytes, value)
        if not self._ahead:
            await self._emit(value)

    async def _emit(self, value: JsonValue) -> None:
        await self._parts.announce(
            Emitted(self._journal.task_id, self._calls.node, value)
        )

    async def _keep(
        self, op: str, kind: Literal["model", "once"], name: str, value: JsonValue
    ) -> None:
        check_size("record_bytes", self._parts.flow.limits.record_bytes, value)
        task = self._journal.task_id
        finish = Finish(task=task, op=op, kind=kind, name=name, value=value)
        await self._parts.write(self._journal, finish)

    def tools(self) -> list[Tool]:
        """Return the tools to show the agent."""
        executor = self._parts.flow.executor
        return [] if executor is None else executor.tools(self._parts.agent)


def check_size(limit: str, most: int, value: Any) -> None:
    """Check the size of a JSON value in bytes. Raises FlowLimitError."""
    check_bytes(limit, most, len(json_bytes(value)))


def check_bytes(limit: str, most: int, size: int) -> None:
    """Check a size in bytes. Raises FlowLimitError."""
    if size > most:
        raise FlowLimitError(
            f"a value has more than {most} bytes",
            hint=f"keep it elsewhere and name its place, or raise {limit}",
            details={"limit": limit, "value": most},
        )
