"""Messages, calls and results, in the shapes that providers take.

Rows LC-10..LC-13, RG-28, RG-29, RL-21, RO-01 and RO-02. The shapes are those of
`ChatCompletionMessageParam` (openai-python) and `MessageParam`
(anthropic-sdk-python).
"""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ValidationError

from toolcell.core import (
    ConfigError,
    ErrorInfo,
    GuardDeniedError,
    InvalidInputError,
    Message,
    Role,
    ToolCall,
    ToolcellError,
    ToolExecutionError,
    ToolResult,
    ToolTimeoutError,
)

CALL = ToolCall(id="call_1", name="add", arguments={"a": 1, "b": "zwei – 二"})


@pytest.mark.promise("LC-10", "RL-18")
def test_an_id_of_a_message_stays_with_the_caller() -> None:
    message = Message(role=Role.USER, content="hi", id="m1")

    assert Message.model_validate_json(message.model_dump_json()).id == "m1"
    assert "m1" not in str(message.to_openai_format())
    assert "m1" not in str(message.to_anthropic_format())


@pytest.mark.promise("LC-11")
def test_roles_are_a_string_enum() -> None:
    assert [role.value for role in Role] == ["system", "user", "assistant", "tool"]
    assert f"{Role.TOOL}" == "tool"
    assert Role("user") is Role.USER


@pytest.mark.promise("LC-10")
@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Message.system("Be brief."), {"role": "system", "content": "Be brief."}),
        (Message.user("1 + 1?"), {"role": "user", "content": "1 + 1?"}),
        (Message.assistant("2"), {"role": "assistant", "content": "2"}),
    ],
)
def test_plain_turns_have_one_shape(message: Message, expected: dict[str, Any]) -> None:
    assert message.to_openai_format() == expected
    assert message.to_anthropic_format() == expected


@pytest.mark.promise("LC-10", "LC-12")
@pytest.mark.parametrize(("text", "content"), [("", None), ("I add.", "I add.")])
def test_calls_in_the_openai_shape(text: str, content: str | None) -> None:
    function = {"name": "add", "arguments": '{"a": 1, "b": "zwei – 二"}'}

    assert Message.assistant(text, [CALL]).to_openai_format() == {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }


@pytest.mark.promise("LC-10", "LC-12")
def test_calls_in_the_anthropic_shape() -> None:
    block = {
        "type": "tool_use",
        "id": "call_1",
        "name": "add",
        "input": {"a": 1, "b": "zwei – 二"},
    }

    said = Message.assistant("I add.", [CALL]).to_anthropic_format()
    assert said["role"] == "assistant"
    assert said["content"] == [{"type": "text", "text": "I add."}, block]
    silent = Message.assistant(tool_calls=[CALL]).to_anthropic_format()
    assert silent["content"] == [block]


@pytest.mark.promise("LC-13")
def test_results_in_both_shapes() -> None:
    message = Message.tool(ToolResult(call_id="call_1", name="add", content=3))

    assert message.to_openai_format() == {
        "role": "tool",
        "content": "3",
        "tool_call_id": "call_1",
    }
    block = {"type": "tool_result", "tool_use_id": "call_1", "content": "3"}
    assert message.to_anthropic_format() == {"role": "user", "content": [block]}


@pytest.mark.promise("RO-02", "LT-13", "RL-03")
@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("as it is\n", "as it is\n"),
        ({"a": [1, None, True, "ö"]}, '{"a": [1, null, true, "ö"]}'),
        (None, "null"),
        (1.5, "1.5"),
    ],
)
def test_values_are_read_as_json(content: Any, text: str) -> None:
    assert ToolResult(call_id="1", name="f", content=content).to_text() == text


@pytest.mark.promise("RL-21")
@pytest.mark.parametrize("content", [None, "", "half of it"])
def test_a_failure_reaches_the_model(content: str | None) -> None:
    error = ToolExecutionError("no such table", hint="list them first")
    result = ToolResult.failed("call_1", "query", error, content=content)
    message = Message.tool(result)

    expected: dict[str, Any] = {
        "status": "error",
        "error": {
            "kind": "tool.execution",
            "message": "no such table",
            "hint": "list them first",
        },
    }
    if content is not None:
        expected["content"] = content
    assert json.loads(message.to_openai_format()["content"]) == expected
    [block] = message.to_anthropic_format()["content"]
    assert block["is_error"] is True
    assert json.loads(block["content"]) == expected


@pytest.mark.promise("RL-21")
def test_an_error_without_words_is_still_told() -> None:
    text = ToolResult.failed("1", "f", ToolExecutionError("")).to_text()

    assert json.loads(text)["error"]["message"] == "ToolExecutionError"


@pytest.mark.promise("RG-28", "RG-29")
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ToolTimeoutError("stopped"), "timeout"),
        (GuardDeniedError("not now", details={"retry_after": 3}), "denied"),
    ],
)
def test_an_error_is_data_in_the_one_envelope(
    error: ToolcellError, status: Literal["timeout", "denied"]
) -> None:
    result = ToolResult.failed("1", "f", error, status=status)

    assert result.status == status
    assert not result.ok
    assert result.error == ErrorInfo(
        kind=error.kind, message=error.message, details=error.details
    )
    assert ToolResult.model_validate_json(result.model_dump_json()) == result


@pytest.mark.promise("RL-21")
def test_telling_of_an_error_never_fails() -> None:
    error = ToolExecutionError("half \ud83d", details={"at": object, "\ud83d": 1})
    info = ErrorInfo.of(error)

    assert info.message == "half \\ud83d"
    assert info.details == {"at": "<class 'object'>", "\\ud83d": "1"}


@pytest.mark.promise("RG-28")
def test_a_status_and_its_error_agree() -> None:
    info = ErrorInfo(kind="tool", message="broken")

    with pytest.raises(InvalidInputError, match="needs an error"):
        ToolResult(call_id="1", name="f", status="timeout")
    with pytest.raises(InvalidInputError, match="needs an error"):
        ToolResult(call_id="1", name="f", status="ok", error=info)


@pytest.mark.promise("RO-01")
def test_arguments_may_come_as_json_text() -> None:
    call = ToolCall.model_validate({"id": "1", "name": "f", "arguments": '{"a": [1]}'})

    assert call.arguments == {"a": [1]}
    assert call == ToolCall(id="1", name="f", arguments={"a": [1]})


MALFORMED = [
    "{",
    "[1]",
    "1",
    '"{}"',
    '{"a": 1} {"a": 2}',
    '{"a": 1, "a": 2}',
    '{"a": NaN}',
    '{"a": -Infinity}',
    '{"a": 1e999}',
    '{"a": "\\ud800"}',
    '{"a": ' + "9" * 5000 + "}",
    '{"a": ' + "[" * 100_000,
    "\ud800",
]


@pytest.mark.promise("RO-01", "T19")
@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_call_stays_what_its_model_wrote(text: Any) -> None:
    call = ToolCall(id="1", name="f", arguments=text)
    answer = Message.assistant(tool_calls=[call])

    assert (call.arguments, call.malformed) == ({}, call.malformed or "no")
    assert text[:9] in (call.malformed or "") or text == "\ud800"
    assert Message.model_validate_json(answer.model_dump_json()) == answer
    assert call.to_openai_format()["function"]["arguments"] == call.malformed
    assert call.to_anthropic_format()["input"] == {}


@pytest.mark.promise("T19")
@pytest.mark.parametrize("text", ["", " \n", "null", "{}"])
def test_no_arguments_are_no_arguments(text: Any) -> None:
    assert ToolCall(id="1", name="f", arguments=text) == ToolCall(id="1", name="f")


@pytest.mark.promise("T19")
def test_a_call_has_arguments_or_is_malformed() -> None:
    with pytest.raises(InvalidInputError, match="not malformed"):
        ToolCall(id="1", name="f", arguments={"a": 1}, malformed="{")
    assert "malformed" not in ToolCall(id="1", name="f").model_dump()


@pytest.mark.promise("LC-12", "LC-13")
@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), (1,), {1: 2}, b"x", object(), "\ud800", {1}]
)
def test_only_json_values_travel(value: Any) -> None:
    with pytest.raises(InvalidInputError):
        ToolCall(id="1", name="f", arguments={"a": value})
    with pytest.raises(InvalidInputError):
        ToolResult(call_id="1", name="f", content=value)


@pytest.mark.promise("LC-12")
def test_a_call_shares_nothing_with_its_caller() -> None:
    mine: dict[str, Any] = {"paths": ["a.txt"]}
    call = ToolCall(id="1", name="f", arguments=mine)
    mine["paths"].append("secret")
    call.to_anthropic_format()["input"]["paths"].append("secret")

    assert call.arguments == {"paths": ["a.txt"]}


@pytest.mark.promise("LC-12")
def test_a_call_names_its_agent_and_its_parent() -> None:
    assert (CALL.agent_id, CALL.parent_id) == (None, None)
    inner = ToolCall(id="2", name="f", agent_id="agent", parent_id="call_1")
    assert (inner.agent_id, inner.parent_id) == ("agent", "call_1")
    assert "agent" not in json.dumps(inner.to_openai_format())


@pytest.mark.promise("RG-28")
@pytest.mark.parametrize("amount", [-1, True, 0.5, "-1", "1e3", "NaN", "", " 1", None])
def test_usage_is_counted_or_decimal(amount: Any) -> None:
    used: dict[str, int | str] = {"calls": 1, "usd": "0.0012"}
    assert ToolResult(call_id="1", name="f", usage=used).usage == used

    with pytest.raises(InvalidInputError, match="usage"):
        ToolResult(call_id="1", name="f", usage={"usd": amount})


@pytest.mark.promise("LC-10", "RG-28")
@pytest.mark.parametrize(
    "value",
    [
        CALL,
        ToolResult(call_id="1", name="f"),
        Message.assistant("hi", [CALL]),
        ErrorInfo(kind="tool", message="broken"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_are_frozen_and_refuse_unknown_keys(value: BaseModel) -> None:
    kind = type(value)
    fields = value.model_dump(mode="json")

    assert kind.model_validate(fields) == value
    assert kind.model_validate_json(value.model_dump_json()) == value
    with pytest.raises(InvalidInputError, match="outptu: Extra inputs") as caught:
        kind.model_validate({**fields, "outptu": 1})
    assert caught.value.details["problems"][0]["field"] == "outptu"
    name = next(iter(kind.model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(value, name, "other")


@pytest.mark.promise("LC-10")
@pytest.mark.parametrize(
    "fields",
    [
        {"role": "tool", "content": "3"},
        {"role": "user", "content": "3", "call_id": "1"},
        {"role": "user", "content": "3", "failed": True},
        {"role": "tool", "content": "", "call_id": "1", "failed": True},
        {"role": "user", "tool_calls": [{"id": "1", "name": "f"}]},
        {"role": "assistant", "tool_calls": [{"id": "", "name": "f"}]},
        {"role": "robot", "content": "3"},
        {"role": "user", "content": "half \ud83d"},
    ],
)
def test_a_message_fits_its_role(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        Message.model_validate(fields)


@pytest.mark.promise("RG-29")
def test_a_bad_message_is_one_typed_error() -> None:
    with pytest.raises(InvalidInputError) as caught:
        ToolCall.model_validate({"name": ""})

    assert not isinstance(caught.value, ConfigError)
    fields = [problem["field"] for problem in caught.value.details["problems"]]
    assert fields == ["id", "name"]


@pytest.mark.promise("RG-29")
def test_an_error_inside_a_message_keeps_its_path() -> None:
    calls: Any = [{"id": "1", "name": "f"}, {"id": "", "name": "f"}]
    with pytest.raises(InvalidInputError) as raised:
        Message(role=Role.ASSISTANT, tool_calls=calls)

    [problem] = raised.value.details["problems"]
    assert problem["field"] == "tool_calls.1.id"
