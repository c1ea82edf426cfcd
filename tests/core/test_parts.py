"""Pictures and texts in messages, as providers take them."""

from __future__ import annotations

import pytest

from toolcell.core import (
    ImagePart,
    InvalidInputError,
    Message,
    Role,
    TextPart,
    ToolCall,
    ToolResult,
)

PICTURE = ImagePart(mime="image/png", data="iVBORw0KGgo=")
NOTE = TextPart(text="a note")
URL = {"url": "data:image/png;base64,iVBORw0KGgo="}
SOURCE = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
CALL = ToolCall(id="c1", name="draw")


def test_a_person_shows_pictures() -> None:
    message = Message.user("see", [PICTURE, NOTE])

    see = {"type": "text", "text": "see"}
    note = {"type": "text", "text": "a note"}
    assert message.to_openai_format() == {
        "role": "user",
        "content": [see, {"type": "image_url", "image_url": URL}, note],
    }
    assert message.to_anthropic_format() == {
        "role": "user",
        "content": [see, {"type": "image", "source": SOURCE}, note],
    }
    assert Message.user("", [NOTE]).to_openai_format()["content"] == [note]


def test_a_tool_shows_pictures_where_its_answer_may_hold_some() -> None:
    result = ToolResult.returned(CALL, {"a": 1}, {}, [PICTURE, NOTE])
    message = Message.tool(result)

    said = {"type": "text", "text": '{"a": 1}'}
    note = {"type": "text", "text": "a note"}
    [block] = message.to_anthropic_format()["content"]
    assert block["content"] == [said, {"type": "image", "source": SOURCE}, note]
    assert message.to_openai_format()["content"] == [
        said,
        {"type": "text", "text": "[image/png: not sent]"},
        note,
    ]


@pytest.mark.parametrize("content", ["text", {"deep": [1]}])
def test_parts_survive_json(content: object) -> None:
    result = ToolResult.returned(CALL, content, {}, [PICTURE, NOTE])  # type: ignore[arg-type]

    assert ToolResult.model_validate_json(result.model_dump_json()) == result
    message = Message.tool(result)
    assert Message.model_validate_json(message.model_dump_json()) == message
    assert "iVBORw0KGgo" not in repr(message)


def test_parts_are_of_people_and_tools_and_whole() -> None:
    with pytest.raises(InvalidInputError):
        Message(role=Role.ASSISTANT, content="x", parts=(NOTE,))
    for bad in (
        {"mime": "image/svg+xml", "data": "AAAA"},
        {"mime": "image/png", "data": "<svg>"},
        {"mime": "image/png", "data": ""},
    ):
        with pytest.raises(InvalidInputError):
            ImagePart.model_validate(bad)
    with pytest.raises(InvalidInputError):
        TextPart(text="\ud800")
