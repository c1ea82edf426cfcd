"""Questions of an MCP server to the user, while its call runs."""

from __future__ import annotations

from collections.abc import Awaitable
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio.abc import TaskGroup

from toolcell.core import ToolcellError, ToolExecutionError

from ..definition.questions import AskUser
from ..definition.validation import json_bytes
from .forms import question_of

if TYPE_CHECKING:
    from mcp.client.session import ClientRequestContext
    from mcp.types import (
        ElicitRequestParams,
        ElicitResult,
        ErrorData,
        InputRequiredResult,
    )

MAX_QUESTIONS = 16
"""Questions in the course of one call. When it is reached further ones are refused."""

_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class _Waiting:
    """A question of a server of the older protocol, which waits for its answer."""

    params: ElicitRequestParams
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    over: anyio.Event = field(default_factory=anyio.Event)
    answer: ElicitResult | ErrorData | None = None


class ServerQuestions:
    """The questions on one connection, each asked in the course of its call.

    Servers of the newer protocol ask by the result of a call. Others send a request
    that does not name the call, so these may ask while a single call runs.

    Args:
        server: The server's name.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._calls: list[_OpenCall] = []

    async def receive(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult | ErrorData:
        """Answer a request; it is the callback of the MCP library."""
        if len(self._calls) != 1:
            return _refusal(
                "several calls run, or none, and which one asks is not known"
            )
        return await self._calls[0].answer(params)

    async def during(self, ask: AskUser | None, answer: Awaitable[_T]) -> _T:
        """Await the answer of a call, in whose course the server may ask."""
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            call = _OpenCall(self._server, ask, tasks)
            self._calls.append(call)
            try:
                result = await answer
            except Exception as error:  # noqa: BLE001 - a group would wrap it
                failure = error
            finally:
                self._calls.remove(call)
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return result

    async def answers(
        self, wanted: InputRequiredResult, ask: AskUser | None
    ) -> dict[str, ElicitResult]:
        """Return the answers to a result that is a question.

        Raises:
            ToolcellError: One cannot be asked, or is refused.
        """
        from mcp import types as mcp

        answers = {}
        for key, request in (wanted.input_requests or {}).items():
            if ask is None or not isinstance(request, mcp.ElicitRequest):
                raise asks_in_vain(self._server)
            answers[key] = await _asked(self._server, request.params, ask)
        if not answers:
            raise asks_in_vain(self._server)
        return answers


class _OpenCall:
    """One call that waits for its answer; questions are asked in its name."""

    def __init__(self, server: str, ask: AskUser | None, tasks: TaskGroup) -> None:
        self._server = server
        self._ask = ask
        self._tasks = tasks
        self._context = copy_context()
        self._left = MAX_QUESTIONS

    async def answer(self, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """Answer a question; whoever sent it may take it back by cancelling this."""
        self._left -= 1
        if self._left < 0:
            return _refusal(f"one call asks at most {MAX_QUESTIONS} times")
        waiting = _Waiting(params)
        # The guard, and the clock of the call, are found by the call's context.
        self._context.run(self._tasks.start_soon, self._serve, waiting)
        try:
            await waiting.over.wait()
        finally:
            waiting.scope.cancel()
        return waiting.answer or _refusal("the call is over")

    async def _serve(self, waiting: _Waiting) -> None:
        try:
            with waiting.scope:
                if self._ask is None:
                    raise asks_in_vain(self._server)
                waiting.answer = await _asked(self._server, waiting.params, self._ask)
        except ToolcellError as error:
            waiting.answer = _refusal(error.message)
        finally:
            waiting.over.set()


async def _asked(
    server: str, params: ElicitRequestParams, ask: AskUser
) -> ElicitResult:
    from mcp import types as mcp

    answer = await ask(question_of(server, params))
    content: Any = dict(answer.content) if answer.action == "accept" else None
    try:
        # What cannot be sent would end the connection.
        json_bytes(content)
        return mcp.ElicitResult(action=answer.action, content=content)
    except ValueError:
        raise ToolExecutionError(
            f"the answer for the MCP server {server} has values that forms do not have",
            hint="call the tool again, and answer what it asks",
        ) from None


def asks_in_vain(name: str) -> ToolExecutionError:
    """Return the error of a call that asks for what nobody gives it."""
    return ToolExecutionError(
        f"{name} asks for input that nobody gives it here",
        hint="call it with all that it needs, or use another tool",
    )


def _refusal(reason: str) -> ErrorData:
    from mcp import types as mcp

    return mcp.ErrorData(code=mcp.INVALID_REQUEST, message=reason)
