"""What stubs say of the answers of an API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolcell.tools import OpenAPIToolset
from toolcell.tools.export.python_stubs import stub
from toolcell.tools.openapi.schemas import MAX_ANSWER_SCHEMAS

pytestmark = pytest.mark.anyio

PET = {
    "type": "object",
    "required": ["id", "name", "key"],
    "properties": {
        "id": {"type": "integer", "readOnly": True},
        "name": {"type": "string", "description": "Its\u200b name."},
        "key": {"type": "string", "writeOnly": True},
        "friends": {"type": "array", "items": {"$ref": "#/components/schemas/Pet"}},
    },
}


async def tool_of(responses: Any, version: str = "3.0.3") -> Any:
    values = {
        "openapi": version,
        "info": {"title": "Pets", "version": "1"},
        "paths": {"/pet": {"get": {"operationId": "pet", "responses": responses}}},
        "components": {"schemas": {"Pet": PET}},
    }
    document = json.dumps(values)
    server = "https://api.example.com"
    async with OpenAPIToolset("api", document, server, pins=None) as toolset:
        assert toolset.unusable == {}
        [tool] = toolset.tools
    return tool


def answering(schema: Any, status: str = "200") -> dict[str, Any]:
    content = {"application/json": {"schema": schema}}
    return {status: {"description": "ok", "content": content}}


async def test_stubs_have_the_types_of_answers() -> None:
    pets = {"type": "array", "items": {"$ref": "#/components/schemas/Pet"}}
    errors = answering({"type": "string"}, "404")
    tool = await tool_of(answering(pets, "201") | errors)
    text = stub("pet", tool)

    assert "-> list[" in text and "-> Any" not in text
    assert "id: int" in text and "name: str" in text
    # What is sent alone is in no answer.
    assert "key" not in text
    definitions = tool.definition.output_schema["$defs"]
    assert definitions["Pet"]["required"] == ["id", "name"]
    assert "\u200b" not in json.dumps(tool.usual_result, ensure_ascii=False)


@pytest.mark.parametrize(
    "responses",
    [
        {},
        {"204": {"description": "nothing"}},
        answering({"type": "string"}, "404"),
        answering({"$ref": "#/components/schemas/None"}),
        answering({"type": "string", "enum": ["a\u202eb"]}),
        answering({"type": "string", "description": "x" * 20_000}),
        answering({"type": "string", "pattern": "(?=a)b"}),
        {"200": {"$ref": "#/components/responses/None"}},
    ],
)
@pytest.mark.parametrize("version", ["3.0.3", "3.1.0"])
async def test_an_answer_that_cannot_be_read_costs_no_operation(
    responses: Any, version: str
) -> None:
    tool = await tool_of(responses, version)

    assert tool.definition.output_schema is None
    assert "outputSchema" not in tool.definition.to_json()
    assert "-> Any" in stub("pet", tool)


async def test_an_answer_has_a_number_of_schemas() -> None:
    """Attack: a document lets the host convert large answers, all of them in vain."""
    schemas = []
    for number in (MAX_ANSWER_SCHEMAS - 1, MAX_ANSWER_SCHEMAS):
        properties: dict[str, Any] = {f"a{index}": {} for index in range(number)}
        tool = await tool_of(answering({"type": "object", "properties": properties}))
        schemas.append(tool.definition.output_schema)

    assert len(schemas[0]["properties"]) == MAX_ANSWER_SCHEMAS - 1
    assert schemas[1] is None
