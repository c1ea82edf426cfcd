"""A request holds what its arguments say, under the names that rules judge."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st

from toolcell.core import ToolValidationError
from toolcell.tools import OpenAPIToolset
from toolcell.tools.openapi.requests import draft

from ...conftest import run_apart
from ...support.web.api import given, operation

pytestmark = pytest.mark.promise("T1")
NAMES = ["amount", "owner", "filter", "Owner", "owner[]", "filter[owner]", "a", "x y"]
SCALARS = st.sampled_from(["me", "root", 1, True, "a&owner=root", "=", ""])
INNER = st.recursive(
    SCALARS,
    lambda each: (
        st.lists(each, max_size=2)
        | st.dictionaries(st.sampled_from(NAMES), each, max_size=3)
    ),
    max_leaves=5,
)
MAP = {"type": "object"}
FORM = "application/x-www-form-urlencoded"


def tool_of(values: dict[str, Any]) -> Any:
    async def made() -> Any:
        toolset = OpenAPIToolset("a", json.dumps(values), "http://x", pins=None)
        async with toolset:
            [tool] = toolset.tools
            return tool

    return run_apart(made)


def form(**encoding: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"amount": {}, "owner": {}}}
    content = {FORM: {"schema": schema, "encoding": encoding}}
    return operation("/p", requestBody={"content": content}, method="post")


QUERY = tool_of(
    operation(
        "/p",
        parameters=[
            given("owner", "query", schema={}),
            given("filter", "query", schema={}),
            given("amount", "query", schema={}, style="deepObject", explode=True),
        ],
    )
)
FORMS = {
    style: tool_of(form(**{name: {"style": style} for name in NAMES} if style else {}))
    for style in ("", "form", "deepObject", "pipeDelimited")
}


def sent(tool: Any, arguments: dict[str, Any]) -> list[tuple[str, str]] | None:
    """Return the fields of a request as a server reads them; None: it is refused."""
    try:
        made = draft(tool.name, tool.definition, arguments)
    except ToolValidationError:
        return None
    text = urlsplit(made.target).query if made.body is None else made.body.decode()
    return parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text))


def first_name(name: str) -> str:
    return name.partition("[")[0].casefold()


@settings(max_examples=400, derandomize=True)
@over(
    st.dictionaries(st.sampled_from(["owner", "filter", "amount"]), INNER),
    st.sampled_from(["owner", "filter", "amount"]),
)
def test_a_query_has_a_parameter_only_if_its_argument_is_given(
    arguments: dict[str, Any], name: str
) -> None:
    pairs = sent(QUERY, arguments)
    if pairs is None:
        return
    alone = sent(QUERY, {name: arguments[name]}) if name in arguments else []
    named = [pair for pair in pairs if first_name(pair[0]) == name]

    assert alone is not None
    assert named == [pair for pair in alone if first_name(pair[0]) == name]


@settings(max_examples=400, derandomize=True)
@over(
    st.sampled_from(sorted(FORMS)),
    st.dictionaries(st.sampled_from(NAMES), INNER, max_size=4),
    st.sampled_from(["owner", "filter", "amount"]),
)
def test_a_form_has_a_field_only_if_its_argument_is_given(
    style: str, fields: dict[str, Any], name: str
) -> None:
    tool = FORMS[style]
    pairs = sent(tool, {"body": fields})
    if pairs is None:
        return
    alone = sent(tool, {"body": {name: fields[name]}}) if name in fields else []

    assert [pair for pair in pairs if pair[0].partition("[")[0] == name] == alone
    # Nothing of the arguments is left out either.
    assert len(pairs) >= sum(value not in ([], {}) for value in fields.values())


@pytest.mark.parametrize(
    ("encoding", "body", "expected"),
    [
        (
            {},
            {"amount": 50, "meta": {"amount": "5000"}},
            [("amount", "50"), ("meta", '{"amount":"5000"}')],
        ),
        (
            {"meta": {"style": "deepObject"}},
            {"meta": {"order": "1", "at": {"x": [1, {"y": 2}]}}},
            [("meta[order]", "1"), ("meta[at][x][0]", "1"), ("meta[at][x][1][y]", "2")],
        ),
        (
            {"ids": {"style": "deepObject"}},
            {"ids": ["a", "b"]},
            [("ids[0]", "a"), ("ids[1]", "b")],
        ),
        ({}, {"ids": ["a", "b"]}, [("ids", "a"), ("ids", "b")]),
        (
            {"ids": {"style": "pipeDelimited", "explode": False}},
            {"ids": ["a", "b"]},
            [("ids", "a|b")],
        ),
        ({"meta": {"explode": True}}, {"meta": {"amount": "5000"}}, None),
        ({}, {"amount[]": 5}, None),
        ({"meta": {"style": "deepObject"}}, {"meta": {"a][b": 1}}, None),
    ],
)
def test_a_form_is_written_as_its_encoding_says(
    encoding: Any, body: Any, expected: Any
) -> None:
    assert sent(tool_of(form(**encoding)), {"body": body}) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        {"owner": "me", "filter": {"owner": "root"}},
        {"filter": {"owner": "root"}},
        {"filter": {"Owner[]": "root"}},
        {"filter": {"amount[max]": "root"}},
        {"owner": {"filter": 1}},
        {"filter": {"a": 1, "a[]": 2}},
    ],
)
def test_a_member_that_would_be_another_parameter_is_refused(arguments: Any) -> None:
    with pytest.raises(ToolValidationError, match="no other parameter has"):
        QUERY.validate(arguments)
    assert sent(QUERY, {"filter": {"a": 1, "b": [2]}}) == [("a", "1"), ("b", "[2]")]
