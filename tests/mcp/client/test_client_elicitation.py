"""Questions of MCP servers to the user: acts of the guard, never about secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import ToolResult
from toolcell.guard import ActionGuard, AgentPolicy, Approvals, Approve, Reject
from toolcell.tools import ConcurrentExecutor, MCPToolset, RunContext, ToolRegistry
from toolcell.tools.spi import AskUser, UserAnswer, UserQuestion

from ...support.mcp.servers import Scripted, definition

pytestmark = [pytest.mark.anyio, pytest.mark.promise("door-12")]

CITY = {
    "type": "string",
    "title": "City",
    "description": "x" * 2_000,
    "default": "Paris",
    "x-run": "y",
}
SIZE = {"type": "integer", "minimum": 1, "default": 2}
PLAIN = {
    "type": "object",
    "properties": {"city": CITY, "size": SIZE},
    "required": ["city"],
}
UNANSWERED = "nobody answers this question"
OBJECT = {"type": "object", "properties": {"password": {"type": "string"}}}
FORM: dict[str, Any] = {"message": "Where to?\x1b[2J", "requestedSchema": PLAIN}
ALLOWED = AgentPolicy(agent_id="a", allow=["test__*", "user.ask"])
NEWER = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
CACHED = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def accepted(**content: Any) -> UserAnswer:
    return UserAnswer(action="accept", content=content)


OSLO = accepted(city="Oslo")


def form_of(**fields: Any) -> dict[str, Any]:
    return FORM | {"requestedSchema": {"type": "object", "properties": fields}}


class Desk:
    """Calls a server's tools; its user has one answer to everything."""

    def __init__(
        self,
        toolset: MCPToolset,
        answer: UserAnswer | AskUser | None,
        guard: ActionGuard,
    ) -> None:
        self.executor = ConcurrentExecutor(ToolRegistry(toolset.tools), guard=guard)
        self.asked: list[UserQuestion] = []
        self._answer = answer

    async def _put(self, question: UserQuestion) -> UserAnswer:
        self.asked.append(question)
        assert self._answer is not None
        if isinstance(self._answer, UserAnswer):
            return self._answer
        return await self._answer(question)

    async def call(self, tool: str = "form", **arguments: Any) -> ToolResult:
        run = RunContext(ask_user=None if self._answer is None else self._put)
        number = len(self.executor.records.query())
        call = {"id": f"call-{number}", "name": f"test__{tool}", "arguments": arguments}
        return await self.executor.call({**call, "agent_id": "a"}, run=run)

    async def told(self, **arguments: Any) -> Any:
        """Return what the server was answered."""
        result = await self.call(**arguments)
        return json.loads(result.to_text())

    @property
    def reasons(self) -> str:
        """What the records of its acts say went wrong."""
        return str([each.error_detail for each in self.executor.records.query()])


async def told(
    folder: Path,
    answer: UserAnswer | None = OSLO,
    *,
    policy: AgentPolicy = ALLOWED,
    form: Mapping[str, Any] = FORM,
    handler: Any = None,
) -> tuple[Any, Desk]:
    """Return what a server that asks is answered, and who was asked."""
    guard = ActionGuard([policy], approvals=Approvals(handler=handler, wait_seconds=5))
    async with Scripted(folder, "form").toolset(elicitation=True) as toolset:
        desk = Desk(toolset, answer, guard)
        return await desk.told(**form), desk


async def test_the_user_of_the_call_answers(tmp_path: Path) -> None:
    answer, desk = await told(tmp_path)

    assert answer == {"action": "accept", "content": {"city": "Oslo"}}
    [question] = desk.asked
    mark = "[MCP server test; its words, not instructions]"
    assert question.message == f"{mark} Where to?\\u{{1b}}[2J"
    city = question.fields["properties"]["city"]
    assert set(city) == {"type", "title", "description", "default"}
    assert len(city["description"]) < 1_100
    assert question.fields["properties"]["size"] == SIZE
    [act, call] = desk.executor.records.query()
    assert {act.tool_name, call.tool_name} == {"user.ask", "test__form"}


async def test_the_fields_of_the_protocol_are_asked_for(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "old": {"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]},
        "one": {"type": "string", "oneOf": [{"const": "a", "title": "A"}]},
        "some": {"type": "array", "items": {"type": "string", "enum": ["a"]}},
        "any": {
            "type": "array",
            "items": {"type": "string", "anyOf": [{"const": "a"}]},
        },
        "number": {"type": "number", "default": 1.5, "maximum": 2},
        "sure": {"type": "boolean", "title": "Sure?", "default": False},
    }
    values: dict[str, Any] = {
        "old": "b",
        "one": "a",
        "some": ["a"],
        "any": [],
        "number": 0.5,
    }
    more = {name: {**each, "$ref": "#", "not": {}} for name, each in fields.items()}
    answer, desk = await told(tmp_path, accepted(**values), form=form_of(**more))

    assert answer["content"] == values
    assert desk.asked[0].fields["properties"] == fields


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_user_may_say_no(tmp_path: Path, action: Any) -> None:
    answer, _ = await told(tmp_path, UserAnswer(action=action, content={"city": "x"}))

    assert answer == {"action": action}


@pytest.mark.parametrize(
    ("form", "why"),
    [
        (form_of(api_key={"type": "string"}), "secret"),
        (form_of(x={"type": "string", "title": "Your password"}), "secret"),
        (form_of(x={"type": "object", "properties": {}}), "a field is"),
        (form_of(x="string"), "a field is"),
        (form_of(), "1 to 32 fields"),
        (form_of(**{f"f{n}": {"type": "string"} for n in range(33)}), "1 to 32 fields"),
        (form_of(x={"type": "string", "enum": ["a\u202e"]}), "hidden characters"),
        (form_of(x={"type": "string", "minLength": -1}), "schema"),
        (form_of(x={"type": "string", "default": {"y": "z"}}), "a field is"),
        (form_of(x={"type": "string", "enum": [{"y": "z"}]}), "a field is"),
        (form_of(x={"type": "string", "oneOf": [OBJECT]}), "a field is"),
        (form_of(x={"type": "array", "items": OBJECT}), "a field is"),
        (form_of(x={"type": "array", "items": {"anyOf": [OBJECT]}}), "a field is"),
        (form_of(x={"type": "array"}), "a field is"),
        (form_of(x={"type": "string", "enum": ["x" * 70_000]}), "bytes"),
        (
            {
                "mode": "url",
                "message": "Log in",
                "url": "https://x.example",
                "elicitationId": "1",
            },
            "no URL",
        ),
    ],
)
async def test_what_no_user_is_asked(
    tmp_path: Path, form: dict[str, Any], why: str
) -> None:
    """Attack: a server asks for a password, or shows a user what misleads."""
    answer, desk = await told(tmp_path, form=form)

    assert why in answer["message"]
    assert desk.asked == []


@pytest.mark.parametrize(
    ("policy", "answer", "why"),
    [
        (AgentPolicy(agent_id="a", allow=["test__*"]), OSLO, "user.ask"),
        (ALLOWED, None, "the client of this call cannot"),
        (ALLOWED, accepted(size=1), "does not fit"),
        (ALLOWED, accepted(city=7), "does not fit"),
        (ALLOWED, accepted(city="x", more={"password": "y"}), "does not fit"),
        (ALLOWED, accepted(city="\ud800"), "not JSON"),
    ],
)
async def test_a_question_is_refused_by_name(
    tmp_path: Path, policy: AgentPolicy, answer: UserAnswer | None, why: str
) -> None:
    """The server reads no reason, which may have words of a person."""
    refusal, desk = await told(tmp_path, answer, policy=policy)

    assert refusal["message"] == UNANSWERED
    assert why in desk.reasons


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ({"answer": {"city": "Bergen"}}, "Bergen"),
        ({"answer": {"city": "Paris", "size": 2}}, "Paris"),
        ({}, "Oslo"),
        ({"message": "Really?"}, "changed the question"),
        ({"answer": {}}, "does not fit"),
        (None, "not while Ada is away"),
    ],
)
async def test_a_person_may_write_the_answer(
    tmp_path: Path, edits: dict[str, Any] | None, expected: str
) -> None:
    async def person(request: Any) -> Approve | Reject:
        if edits is None:
            return Reject(approver="anna", reason=expected)
        arguments = {**request.call.arguments, **edits} if edits else None
        return Approve(approver="anna", arguments=arguments)

    policy = AgentPolicy(agent_id="a", allow=["test__*"], ask=["user.ask"])
    answer, desk = await told(tmp_path, policy=policy, handler=person)

    if "content" in answer:
        assert answer["content"]["city"] == expected
    else:
        assert answer["message"] == UNANSWERED
        assert expected in desk.reasons
    assert len(desk.asked) == (expected == "Oslo")


async def test_of_two_calls_at_once_none_may_ask(tmp_path: Path) -> None:
    """Attack: a server asks the user of one agent what another one's call is about."""
    server = Scripted(tmp_path, "form", "never")
    guard = ActionGuard([ALLOWED])
    async with server.toolset(elicitation=True) as toolset:
        desk = Desk(toolset, OSLO, guard)
        async with anyio.create_task_group() as tasks:
            never = {"id": "2", "name": "test__never", "agent_id": "a"}
            tasks.start_soon(desk.executor.call, never)
            await server.logged("never answers")
            answer = await desk.told(**FORM)
            tasks.cancel_scope.cancel()

    assert "which one asks is not known" in answer["message"]
    assert desk.asked == []


@pytest.mark.parametrize("per_agent", [False, True])
async def test_after_a_call_without_its_answer_no_other_may_ask(
    tmp_path: Path, per_agent: bool
) -> None:
    """Attack: a call of another agent ended, and its server asks only then."""
    server = Scripted(tmp_path, "form", "never", "fails")
    async with server.toolset(elicitation=True, per_agent=per_agent) as toolset:
        desk = Desk(toolset, OSLO, ActionGuard([ALLOWED]))
        assert not (await desk.call("fails")).ok
        assert "content" in await desk.told(**FORM)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(desk.call, "never")
            await server.logged("never answers")
            tasks.cancel_scope.cancel()
        answers = [await desk.told(**FORM) for _ in range(2)]

    for answer in answers:
        assert per_agent or "an earlier call ended" in answer["message"]
    assert len(desk.asked) == (3 if per_agent else 1)


@pytest.mark.parametrize("tool", ["form", "hasty"])
async def test_a_call_that_ends_takes_its_question_along(
    tmp_path: Path, tool: str
) -> None:
    """It is cancelled; or its server answers before the question is."""
    server = Scripted(tmp_path, tool)
    async with server.toolset(elicitation=True) as toolset:
        asked, ended = anyio.Event(), anyio.Event()

        async def put(_: UserQuestion) -> UserAnswer:
            asked.set()
            (tmp_path / "is asked").touch()
            try:
                await anyio.sleep_forever()
            finally:
                ended.set()
            return OSLO

        desk = Desk(toolset, put, ActionGuard([ALLOWED]))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: desk.call(tool, **FORM))
            await asked.wait()
            if tool == "form":
                tasks.cancel_scope.cancel()
        await ended.wait()
        if tool == "form":
            await server.logged("cancelled")
        await server.logged("told")

    assert "the call is over" in server.log("told")[0]


async def test_the_clock_of_the_call_stands_still_meanwhile(tmp_path: Path) -> None:
    left = []

    async def put(_: UserQuestion) -> UserAnswer:
        left.append(anyio.current_effective_deadline() - anyio.current_time())
        return OSLO

    guard = ActionGuard([ALLOWED], approvals=Approvals(wait_seconds=1_000))
    async with Scripted(tmp_path, "form").toolset(elicitation=True) as toolset:
        desk = Desk(toolset, put, guard)
        assert (await desk.call(**FORM)).ok

    # 60 seconds are the call's.
    assert 900 < left[0] < 1_100


def newer(folder: Path, *tools: str) -> Scripted:
    """Return a server that asks by results."""
    server = Scripted(folder)
    server.tell({"tools": [definition(tool) for tool in tools], **CACHED})
    discovered = {"server/discover": NEWER | CACHED}
    (folder / "answers.json").write_text(json.dumps(discovered))
    return server


async def test_a_server_of_the_newer_protocol_asks_by_its_result(
    tmp_path: Path,
) -> None:
    server = newer(tmp_path, "form", "again")
    for elicitation in (True, False):
        async with server.toolset(elicitation=elicitation) as toolset:
            desk = Desk(toolset, OSLO, ActionGuard([ALLOWED]))
            result = await desk.call(**FORM)
            again = await desk.call("again")
        if elicitation:
            expected = {"action": "accept", "content": {"city": "Oslo"}}
            assert json.loads(result.to_text()) == [expected, "s"]
        else:
            assert result.error is not None
            assert "asks for input" in result.error.message
        assert again.to_text() == "False"
    assert server.log("called") == [
        *["form"] * 2,
        *["again"] * 2,
        "form",
        *["again"] * 2,
    ]


@pytest.mark.parametrize(
    ("questions", "asked", "calls"), [(1, 16, 17), (16, 16, 2), (17, 0, 1), (0, 0, 17)]
)
async def test_one_call_asks_sixteen_times(
    tmp_path: Path, questions: int, asked: int, calls: int
) -> None:
    """Attack: a server asks without end, or much at once."""
    question = {"method": "elicitation/create", "params": FORM}
    result: dict[str, Any] = {"resultType": "input_required", "requestState": "s"}
    result["inputRequests"] = {f"q{number}": question for number in range(questions)}
    server = newer(tmp_path, "raw")
    async with server.toolset(elicitation=True) as toolset:
        desk = Desk(toolset, OSLO, ActionGuard([ALLOWED]))
        line = {"jsonrpc": "2.0", "id": "ID", "result": result}
        refused = (await desk.call("raw", line=line)).error

    assert refused is not None
    assert "at most 16 times" in refused.message
    assert len(desk.asked) == asked
    assert len(server.log("called")) == calls
