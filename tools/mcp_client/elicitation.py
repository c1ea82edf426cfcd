"""Questions of an MCP server to the user, while its call runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup

from toolcell.core import ToolcellError, ToolExecutionError

from ..definition.questions import AskUser, UserQuestion
from .forms import question_of, refused_question

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


@dataclass(slots=True, eq=False)
class _Waiting:
    """A question of a server of the older protocol, which waits for its answer."""

    question: UserQuestion
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    over: anyio.Event = field(default_factory=anyio.Event)
    answer: ElicitResult | ErrorData | None = None


class ServerQuestions:
    """The questions on one connection, each asked in the course of its call.

    Servers of the newer protocol ask by the result of a call. Others send a request
    that does not name the call, so these may ask while a single call runs. A server
    may be at work on a call that ended here without its answer. Where agents share
    the connection it may not ask from then on, for it may ask for another's call.

    Args:
        server: The server's name.
        may_ask: False refuses all questions.
        is_shared: True if several agents share the connection.
    """

    def __init__(self, server: str, *, may_ask: bool, is_shared: bool) -> None:
        self.may_ask = may_ask
        self._server = server
        self._is_shared = is_shared
        self._calls: list[CallQuestions] = []
        self._has_lost_call = False

    async def receive(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult | ErrorData:
        """Answer a request; it is the callback of the MCP library."""
        if self._has_lost_call:
            return _refusal(
                "an earlier call ended without its answer, and which one asks is not"
                " known"
            )
        if len(self._calls) != 1:
            return _refusal(
                "several calls run, or none, and which one asks is not known"
            )
        return await self._calls[0].answer(params)

    @asynccontextmanager
    async def during(self, ask: AskUser | None) -> AsyncGenerator[CallQuestions, None]:
        """Yield the questions of a call, which the block makes."""
        failure: Exception | None = None
        is_answered = False
        async with anyio.create_task_group() as tasks:
            call = CallQuestions(self._server, ask if self.may_ask else None, tasks)
            self._calls.append(call)
            try:
                yield call
                is_answered = True
            except Exception as error:  # noqa: BLE001 - a group would wrap it
                failure = error
                is_answered = _is_answer(error)
            finally:
                self._calls.remove(call)
                self._has_lost_call |= self._is_shared and not is_answered
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure


class CallQuestions:
    """The questions in the course of one call.

    Args:
        server: The server's name.
        ask: Asks the user; None: nobody can.
        tasks: The tasks of the call.
    """

    def __init__(self, server: str, ask: AskUser | None, tasks: TaskGroup) -> None:
        self._server = server
        self._ask = ask
        self._tasks = tasks
        self._context = copy_context()
        self._left = MAX_QUESTIONS

    async def answers(self, wanted: InputRequiredResult) -> dict[str, ElicitResult]:
        """Return the answers to a result that is a question, or several.

        Raises:
            ToolcellError: One cannot be asked, or is refused.
        """
        from mcp import types as mcp

        requests = wanted.input_requests or {}
        # Without any it only wants the call again, perhaps forever.
        self._count(max(1, len(requests)))
        answers = {}
        for key, request in requests.items():
            if not isinstance(request, mcp.ElicitRequest):
                raise asks_in_vain(self._server)
            answers[key] = await self._put(question_of(self._server, request.params))
        return answers

    async def answer(self, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """Answer a question; whoever sent it may take it back by cancelling this."""
        try:
            self._count(1)
            waiting = _Waiting(question_of(self._server, params))
        except ToolExecutionError as error:
            return _refusal(error.message)
        # The guard, and the clock of the call, are found by the call's context.
        self._context.run(self._tasks.start_soon, self._serve, waiting)
        try:
            await waiting.over.wait()
        finally:
            waiting.scope.cancel()
        return waiting.answer or _refusal("the call is over")

    def _count(self, questions: int) -> None:
        self._left -= questions
        if self._left < 0:
            raise refused_question(
                self._server, f"one call asks at most {MAX_QUESTIONS} times"
            )

    async def _serve(self, waiting: _Waiting) -> None:
        try:
            with waiting.scope:
                waiting.answer = await self._put(waiting.question)
        except ToolcellError:
            # The reason may have a person's words; the record of the act has it.
            waiting.answer = _refusal("nobody answers this question")
        finally:
            waiting.over.set()

    async def _put(self, question: UserQuestion) -> ElicitResult:
        from mcp import types as mcp

        if self._ask is None:
            raise asks_in_vain(self._server)
        answer = await self._ask(question)
        content: Any = dict(answer.content) if answer.action == "accept" else None
        return mcp.ElicitResult(action=answer.action, content=content)


def _is_answer(error: Exception) -> bool:
    """Return whether an error of a call says that the server is done with it."""
    if not isinstance(error, ToolcellError):
        return False
    return error.details.get("outcome") != "unknown"


def asks_in_vain(name: str) -> ToolExecutionError:
    """Return the error of a call that asks for what nobody gives it."""
    return ToolExecutionError(
        f"{name} asks for input that nobody gives it here",
        hint="call it with all that it needs, or use another tool",
    )


def _refusal(reason: str) -> ErrorData:
    from mcp import types as mcp

    return mcp.ErrorData(code=mcp.INVALID_REQUEST, message=reason)
