"""Questions of MCP servers to users, as acts that the guard judges."""

from __future__ import annotations

from pydantic import JsonValue

from toolcell.core import ToolCall, ToolExecutionError

from ..definition.json_schema import build_validator, problems_of
from ..definition.questions import UserAnswer, UserQuestion
from ..definition.tool import Tool
from ..definition.validation import json_bytes
from .attempt import pause_deadlines
from .components import ExecutorComponents, RunContext
from .operation import Operation, Operations

USER_ASK = "user.ask"
"""The name that rules know."""


class UserQuestions:
    """Asks the user at the client of a call; it is `ToolContext.ask_user`.

    Each question is an act `user.ask` with `server`, `tool`, `message`, `fields` and
    `answer`, which is null. A rule that allows it lets the client ask its user. Where
    a rule asks a person, that one may write an object as `answer`.

    Args:
        components: The guard and stores of the executor.
        call: The call in whose course it asks.
        tool: Its tool.
        run: The agent's run; it has the way to the client.
    """

    def __init__(
        self,
        components: ExecutorComponents,
        call: ToolCall,
        tool: Tool,
        run: RunContext,
    ) -> None:
        self._components = components
        self._call = call
        self._tool = tool
        self._run = run

    async def __call__(self, question: UserQuestion) -> UserAnswer:
        """Return the answer of the user, or of a person in the user's place.

        Raises:
            GuardDeniedError: The agent's rules do not allow the question.
            ToolExecutionError: Nobody can be asked, or the answer does not fit.
        """
        asked: dict[str, JsonValue] = {
            "server": question.server,
            "tool": self._tool.name,
            "message": question.message,
            "fields": dict(question.fields),
            "answer": None,
        }
        async with Operations(self._components)(
            USER_ASK,
            asked,
            agent_id=self._call.agent_id,
            run=self._run,
            parent_id=self._call.id,
            tags=self._tool.tags,
        ) as act:
            answer = self._written(act, asked) or await self._ask_client(question)
            act.note({"action": answer.action})
            if answer.action == "accept":
                _check(question, answer)
        return answer

    def _written(
        self, act: Operation, asked: dict[str, JsonValue]
    ) -> UserAnswer | None:
        """Return the answer that a person wrote; None: that one left it to the user."""
        edited = {name for name in asked if act.arguments.get(name) != asked[name]}
        if not edited:
            return None
        answer = act.arguments.get("answer")
        if edited != {"answer"} or not isinstance(answer, dict):
            raise ToolExecutionError(
                "a person changed the question of the server, not its answer",
                hint="of a `user.ask` write `answer` alone, as an object",
            )
        return UserAnswer(action="accept", content=answer)

    async def _ask_client(self, question: UserQuestion) -> UserAnswer:
        if self._run.ask_user is None:
            raise ToolExecutionError(
                f"the MCP server {question.server} asks the user, and the client of"
                " this call cannot do so",
                hint="with a rule that asks a person about `user.ask`, that one can"
                " write the answer",
            )
        async with pause_deadlines(self._components.approval_seconds(self._run)):
            return await self._run.ask_user(question)


def _check(question: UserQuestion, answer: UserAnswer) -> None:
    """Refuse what the form does not have, and what cannot be sent."""
    content = dict(answer.content)
    form = build_validator("the form", question.fields)
    problems = [str(problem) for problem in problems_of(form, content)]
    try:
        json_bytes(content)
    except ValueError:
        problems.append("it has a value that is not JSON")
    if problems:
        raise ToolExecutionError(
            f"the answer does not fit the form of the MCP server {question.server}:"
            f" {problems[0]}",
            hint="call the tool again, and answer what it asks",
        )
