"""Makes the OpenAPI document out of the operations and their models."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from .bodies import Problem
from .operations import OPERATIONS, Operation

_REF = "#/components/schemas/{model}"
_ID: dict[str, Any] = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1, "maxLength": 256},
}
_LAST_EVENT_ID: dict[str, Any] = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "The id of the last event that the client has.",
    "schema": {"type": "string"},
}
_Kinds = dict[tuple[type[BaseModel], JsonSchemaMode], dict[str, Any]]


def openapi_document(version: str) -> dict[str, Any]:
    """Return the document of the REST API.

    Args:
        version: The version of toolcell.
    """
    kinds, definitions = models_json_schema(
        sorted(_models(), key=str), ref_template=_REF
    )
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        item = paths.setdefault(operation.path, {})
        if "{id}" in operation.path:
            item["parameters"] = [_ID]
        item[operation.method.lower()] = _operation(operation, kinds)  # type: ignore[arg-type]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "toolcell",
            "version": version,
            "summary": "Guarded tools, their approvals, limits and records.",
        },
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _models() -> set[tuple[type[BaseModel], JsonSchemaMode]]:
    """Return each model, and the side of the exchange that it is on."""
    found: set[tuple[type[BaseModel], JsonSchemaMode]] = {(Problem, "serialization")}
    for operation in OPERATIONS:
        if operation.body is not None:
            found.add((operation.body, "validation"))
        found.update((kind, _mode(operation)) for kind in operation.answers.values())
    return found


def _mode(each: Operation) -> JsonSchemaMode:
    # The data of an event is JSON within text, which is described as it arrives.
    return "validation" if each.streams else "serialization"


def _operation(each: Operation, kinds: _Kinds) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": each.name,
        "summary": each.summary,
        "parameters": _parameters(each),
        "responses": _answers(each, kinds),
    }
    if each.body is not None:
        content = {"application/json": {"schema": kinds[each.body, "validation"]}}
        made["requestBody"] = {"required": True, "content": content}
    return made


def _answers(each: Operation, kinds: _Kinds) -> dict[str, Any]:
    good = "text/event-stream" if each.streams else "application/json"
    rows = [
        (code, good, kinds[kind, _mode(each)]) for code, kind in each.answers.items()
    ]
    problem = kinds[Problem, "serialization"]
    rows += [(code, "application/json", problem) for code in each.refusals]
    return {
        str(code): {
            "description": HTTPStatus(code).phrase,
            "content": {media_type: {"schema": schema}},
        }
        for code, media_type, schema in rows
    }


def _parameters(each: Operation) -> list[dict[str, Any]]:
    fields = each.query.model_json_schema().get("properties", {})
    named = [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": field["description"],
            "schema": _value_schema(field),
        }
        for name, field in fields.items()
    ]
    return [*named, _LAST_EVENT_ID] if each.streams else named


def _value_schema(field: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a value that is given: a query has no null."""
    dropped = {"anyOf", "title", "description"}
    if field.get("default") is None:
        dropped.add("default")
    kept = {key: value for key, value in field.items() if key not in dropped}
    kinds = [kind for kind in field.get("anyOf", ()) if kind != {"type": "null"}]
    return kept | (kinds[0] if kinds else {})
