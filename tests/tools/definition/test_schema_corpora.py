"""Schemas that others wrote: the corpora, what is refused, and what stays bounded."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from toolcell.core import ConfigError, ToolValidationError
from toolcell.tools import JSONSchemaTool, ToolRegistry
from toolcell.tools.definition.json_schema import build_validator, problems_of

from ...support.corpora import records

CALLS = 8889
TOOLS = 1117
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2020 = Draft202012Validator.META_SCHEMA["$schema"]
EVIL = {"^(a+)+$": True}


def made(schema: Any, name: str = "t") -> JSONSchemaTool:
    return JSONSchemaTool(lambda arguments: arguments, name=name, parameters=schema)


def of_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.promise("E-121", "GA-22", "A-06", "A-08")
@pytest.mark.corpus
@pytest.mark.timeout(300)
def test_recorded_calls_get_the_recorded_verdict() -> None:
    """GA-22, A-06, A-08: all tools register, all calls are judged as recorded."""
    tools = {}
    for record in records("bfcl/tools.jsonl"):
        subject = JSONSchemaTool(
            lambda arguments: arguments,
            name=record["name"],
            description=record["description"],
            parameters=record["inputSchema"],
        )
        [tools[record["key"]]] = ToolRegistry([subject])
        assert subject.parameters == record["inputSchema"]
    wrong = []
    calls = records("bfcl/calls.jsonl")
    for call in calls:
        try:
            arguments = tools[call["tool"]].validate(call["args"])
            # What was left out has its default.
            verdict = {**arguments.json, **call["args"]} == arguments.json
        except ToolValidationError as error:
            verdict = False
            for problem in error.details["problems"]:
                assert problem["field"].partition(".")[0]
        if verdict is not call["valid"]:
            wrong.append(call["id"])

    assert (len(tools), len(calls), wrong) == (TOOLS, CALLS, [])


def leads_out(schema: Any) -> bool:
    """Tell whether a group of the suite needs its server of remote schemas."""
    text = str(schema)
    return "localhost:1234" in text or "folderInteger" in text or "tree.json" in text


@pytest.mark.promise("E-122")
@pytest.mark.corpus
@pytest.mark.parametrize("draft", ["draft2020-12", "draft7"])
def test_the_suite_of_json_schema(draft: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every required group gets its verdicts, or leads out and is refused."""

    def no_network(*arguments: object, **options: object) -> Any:
        raise AssertionError("something was fetched")

    monkeypatch.setattr(socket, "socket", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    refused, wrong, right = [], [], 0
    for group in records(f"json_schema_suite/{draft}.jsonl"):
        schema = group["schema"]
        if draft == "draft7" and isinstance(schema, dict):
            schema = {"$schema": DRAFT_7} | schema
        try:
            validator = build_validator("t", schema)
        except ConfigError:
            refused.append(group)
            continue
        if group["optional"]:
            continue
        for test in group["tests"]:
            if bool(problems_of(validator, test["data"])) is test["valid"]:
                wrong.append(f"{group['id']} {test['description']}")
            right += 1

    assert wrong == []
    assert right > 400
    needed = [each for each in refused if not each["optional"]]
    assert [each["id"] for each in needed if not leads_out(each["schema"])] == []


@pytest.mark.promise("E-122")
@pytest.mark.parametrize(
    "reference",
    [
        "http://127.0.0.1:9/schema.json",
        "file:///etc/passwd",
        "other.json",
        "#/$defs/none",
        "#nowhere",
    ],
)
def test_a_reference_that_leads_out_is_refused_at_registration(reference: str) -> None:
    with pytest.raises(ConfigError, match="refers to what is not in it") as caught:
        made(of_object(a={"$ref": reference}))
    assert caught.value.details == {"reference": reference}


def test_references_inside_are_followed() -> None:
    schema = of_object(a={"$ref": "#/$defs/b"}) | {"$defs": {"b": {"type": "integer"}}}
    subject = made(schema)

    assert subject.validate({"a": 1}).values == {"a": 1}
    with pytest.raises(ToolValidationError):
        subject.validate({"a": "1"})


@pytest.mark.promise("E-122")
def test_a_reference_to_itself_ends() -> None:
    loop = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
    subject = made(of_object(a={"$ref": "#/$defs/a"}) | {"$defs": loop})

    with pytest.raises(ToolValidationError, match="less for its schema to check"):
        subject.validate({"a": 1})


@pytest.mark.promise("E-122")
@pytest.mark.parametrize(
    "schema",
    [
        of_object(a={"type": "string", "pattern": "^(a+)+$"}),
        of_object(a={"type": "string", "pattern": "^(a|a)*$"}),
        of_object(a={"propertyNames": {"pattern": "^(a+)+$"}}),
        of_object() | {"patternProperties": {"^(a+)+$": {}}},
        of_object()
        | {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False},
        of_object()
        | {"patternProperties": {"^(a+)+$": {}}, "unevaluatedProperties": False},
        {"$schema": DRAFT_7, "patternProperties": EVIL} | of_object(a={"$ref": "#"}),
        of_object(a={"$schema": DRAFT_2020, "pattern": "^(a+)+$"}),
        of_object(a={"$ref": "#/$defs/a"})
        | {"$defs": {"a": {"$schema": DRAFT_2020, "pattern": "^(a+)+$"}}},
        of_object(a={"$ref": "#/aside"})
        | {"aside": {"unevaluatedProperties": False, "patternProperties": EVIL}},
    ],
    ids=[
        "pattern",
        "alternatives",
        "names",
        "pattern-properties",
        "additional",
        "unevaluated",
        "refers-to-its-draft",
        "names-its-draft",
        "definition-names-its-draft",
        "aside",
    ],
)
def test_catastrophic_patterns_take_no_time(schema: dict[str, Any]) -> None:
    subject = made(schema)
    evil = "a" * 5000 + "!"
    # Going back and forth would take longer than the universe is old.
    started = time.process_time()
    for arguments in ({"a": evil}, {evil: 1}, {"a": {evil: 1}}):
        try:
            subject.validate(arguments)
        except ToolValidationError:
            pass
    assert time.process_time() - started < 20


@pytest.mark.promise("E-122")
def test_many_unique_items_take_no_time() -> None:
    subject = made(of_object(a={"type": "array", "uniqueItems": True}))
    # Comparing each with each other one would take longer than a test may.
    items: list[Any] = [{"number": number} for number in range(50_000)]
    subject.validate({"a": items})
    with pytest.raises(ToolValidationError, match="uniqueItems"):
        subject.validate({"a": [*items, {"number": 7.0}]})


@pytest.mark.promise("E-122", "T31")
@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (of_object(a={"pattern": "(?=a)b"}), "linear time"),
        (of_object(a={"pattern": r"(a)\1"}), "linear time"),
        (of_object(a={"pattern": "("}), "linear time"),
        (of_object() | {"patternProperties": {"(?!a)": {}}}, "linear time"),
    ],
)
def test_patterns_that_cannot_be_bounded_are_refused(
    schema: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        made(schema)


@pytest.mark.promise("GA-11")
@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array"}, "not of an object"),
        ({}, "not of an object"),
        (of_object(a={"type": "integr"}), "not valid: properties.a.type fails"),
        (of_object(a=3), "not valid"),
        (of_object() | {"$schema": "https://example.org/my-draft"}, "unknown draft"),
        (of_object(a=object()), "is not JSON"),
    ],
)
def test_a_schema_that_is_not_one_is_refused(schema: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        made(schema)


def test_a_validator_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = made(of_object(a={"type": "integer"}))

    def never(*arguments: object, **options: object) -> Any:
        raise AssertionError("a schema was checked again")

    monkeypatch.setattr(Draft202012Validator, "check_schema", never)
    monkeypatch.setattr("toolcell.tools.definition.json_schema.build_validator", never)
    monkeypatch.setattr("toolcell.tools.definition.json_schema._validator", never)
    for _ in range(3):
        assert subject.validate({"a": 1}).values == {"a": 1}


def test_the_schema_is_copied() -> None:
    schema = of_object(a={"type": "integer"})
    subject = made(schema)
    schema["properties"]["a"]["type"] = "string"

    assert subject.validate({"a": 1}).values == {"a": 1}
    assert subject.parameters["properties"]["a"] == {"type": "integer"}
