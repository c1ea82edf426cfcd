"""Requests to an API: where arguments and secrets go, and where they never go."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolcell.core import ToolResult, ToolValidationError
from toolcell.guard import (
    ActionGuard,
    AgentPolicy,
    ApprovalRequest,
    Approvals,
    Approve,
)
from toolcell.tools import ConcurrentExecutor, OpenAPIToolset, ToolRegistry

from ...support.web.api import NETWORKS, WebAPI, given, operation, web_api

pytestmark = pytest.mark.anyio
SECRET = "correct-horse/battery+staple"


async def called(
    api: WebAPI, values: dict[str, Any], arguments: dict[str, Any], **options: Any
) -> ToolResult:
    """Call the one operation of a document."""
    toolset = OpenAPIToolset(
        *("api", json.dumps(values), api.url + options.pop("base", "")),
        pins=None,
        networks=NETWORKS,
        **options,
    )
    async with toolset:
        [tool] = toolset.tools
        executor = ConcurrentExecutor(ToolRegistry([tool]), guard=None)
        call = {"id": "1", "name": tool.name, "arguments": arguments}
        return await executor.call(call)


def told(result: ToolResult) -> str:
    return "" if result.error is None else result.error.message


LIST = {"type": "array", "items": {"type": "string"}}
MAP = {"type": "object"}


@pytest.mark.parametrize(
    ("parameter", "value", "target"),
    [
        (given("x", "query"), "a b&c=d#?/", "/p?x=a%20b%26c%3Dd%23%3F%2F"),
        (given("x[]", "query", schema=LIST), ["a", "b"], "/p?x%5B%5D=a&x%5B%5D=b"),
        (given("x", "query", schema=LIST, explode=False), ["a", ","], "/p?x=a,%2C"),
        (
            given("x", "query", schema=LIST, style="pipeDelimited", explode=False),
            ["a", "b"],
            "/p?x=a%7Cb",
        ),
        (
            given("x", "query", schema=LIST, style="spaceDelimited", explode=False),
            ["a", "b"],
            "/p?x=a%20b",
        ),
        (
            given("x", "query", schema=MAP, style="deepObject", explode=True),
            {"a": {"b": 1}, "c": True},
            "/p?x%5Ba%5D=%7B%22b%22%3A1%7D&x%5Bc%5D=true",
        ),
        (given("x", "query", schema=MAP), {"a": 1}, "/p?a=1"),
        (given("x", "query", schema=MAP, explode=False), {"a": 1.5}, "/p?x=a,1.5"),
        (
            given("x", "query") | {"content": {"application/json": {"schema": MAP}}},
            {"a": [1]},
            "/p?x=%7B%22a%22%3A%5B1%5D%7D",
        ),
        (given("x", "query", schema={"type": "null"}), None, "/p?x="),
    ],
)
async def test_a_query_is_written_as_its_style_says(
    parameter: Any, value: Any, target: str
) -> None:
    parameter = {
        k: v
        for k, v in parameter.items()
        if k != "schema" or "content" not in parameter
    }
    argument = "x__" if parameter["name"] == "x[]" else "x"
    with web_api() as api:
        values = operation("/p", parameters=[parameter])
        result = await called(api, values, {argument: value})

        assert told(result) == ""
        assert api.targets == [target]


@pytest.mark.parametrize(
    ("schema", "value", "segment"),
    [
        ({"type": "string"}, "a b?#%2F;ü", "a%20b%3F%23%252F%3B%C3%BC"),
        ({"type": "string"}, "...", "..."),
        ({"type": "integer"}, 7, "7"),
        (LIST, ["a", "b"], "a,b"),
        (MAP, {"a": 1, "b": 2}, "a,1,b,2"),
        (LIST, ["a,b", "c"], "a%2Cb,c"),
        (MAP | {"exploded": True}, {"a": "1,b=2", "c=": 3}, "a=1%2Cb%3D2,c%3D=3"),
    ],
)
async def test_a_value_in_a_path_is_one_segment(
    schema: Any, value: Any, segment: str
) -> None:
    explode = "exploded" in schema
    given_id = given("id", "path", schema=schema, explode=explode)
    values = operation("/pets/{id}/x", parameters=[given_id])
    with web_api() as api:
        assert told(await called(api, values, {"id": value}, base="/v1/")) == ""
        assert api.targets == [f"/v1/pets/{segment}/x"]


@pytest.mark.promise("E-68")
@pytest.mark.parametrize(
    "value",
    [
        "..",
        ".",
        "",
        "a/b",
        "../admin",
        "a\\..\\b",
        "/",
        "a\r\nHost: evil",
        "a\0",
        "\u2028",
    ],
)
async def test_a_value_in_a_path_leads_nowhere_else(value: str) -> None:
    values = operation("/pets/{id}", parameters=[given("id", "path")])
    with web_api() as api:
        result = await called(api, values, {"id": value})

        assert result.status == "error"
        assert api.requests == []


@pytest.mark.promise("E-68")
async def test_two_values_of_one_segment_make_no_way_upwards() -> None:
    both = [given("a", "path"), given("b", "path")]
    values = operation("/pets/{a}{b}/x", parameters=both)
    with web_api() as api:
        result = await called(api, values, {"a": ".", "b": "."})

        assert "another path" in told(result)
        assert api.requests == []


@pytest.mark.promise("E-68")
@pytest.mark.parametrize(
    "value", ["a\r\nX-Evil: 1", "a\nb", "\r", "a\0b", "ü", " a", "a ", "a\x7f"]
)
async def test_a_value_of_a_header_is_one_line(value: str) -> None:
    values = operation("/p", parameters=[given("X-A", "header")])
    with web_api() as api:
        result = await called(api, values, {"X-A": value})
        fine = await called(api, values, {"X-A": "a; b=\tc, d"})

        assert "one line" in told(result) and told(fine) == ""
        assert [request.header("X-A") for request in api.requests] == ["a; b=\tc, d"]


DELIMITED: dict[str, Any] = {"schema": {}, "explode": False}
PIPES = given("x", "query", style="pipeDelimited", **DELIMITED)
SPACES = given("x", "query", style="spaceDelimited", **DELIMITED)
DEEP = given("x", "query", style="deepObject", schema=MAP, explode=True)
HEADER = given("x", "header", schema={})


@pytest.mark.promise("E-68")
@pytest.mark.parametrize(
    ("parameter", "value", "mark"),
    [
        (PIPES, ["a|b"], "|"),
        (PIPES, ["a", "|"], "|"),
        (PIPES, {"a": "b|admin|true"}, "|"),
        (PIPES, {"a|b": 1}, "|"),
        (PIPES, [["a|b"]], "|"),
        (PIPES | {"in": "cookie"}, ["a|b"], "|"),
        (SPACES, ["a b"], "space"),
        (SPACES, ["a", {"b": "c d"}], "space"),
        (SPACES, {"a b": 1}, "space"),
        (DEEP, {"a][b": 1}, "[ or ]"),
        (DEEP, {"a[": 1}, "[ or ]"),
        (HEADER, ["a,b"], ","),
        (HEADER, [{"a": 1, "b": 2}], ","),
        (HEADER, {"a": "1,admin,true"}, ","),
        (HEADER | {"explode": True}, {"a": "1,admin=true"}, ","),
        (HEADER | {"explode": True}, {"admin=true": "1"}, "="),
    ],
)
async def test_one_value_does_not_become_two(
    parameter: Any, value: Any, mark: str
) -> None:
    """Nothing tells the mark inside of a value from the one between two."""
    with web_api() as api:
        values = operation("/p", parameters=[parameter])
        result = await called(api, values, {"x": value})

        assert result.error is not None and result.error.kind == "tool.validation"
        assert f"x: not allowed, expected parts without {mark}," in told(result)
        assert api.requests == []


async def test_what_cannot_be_sent_is_refused_before_the_guard_decides() -> None:
    values = operation("/p", parameters=[PIPES])
    async with OpenAPIToolset("a", json.dumps(values), "http://x", pins=None) as api:
        [tool] = api.tools

    with pytest.raises(ToolValidationError):
        tool.validate({"x": ["a|b"]})


@pytest.mark.parametrize(
    ("parameter", "value", "sent"),
    [
        (PIPES, ["a b,c", "d"], "/p?x=a%20b%2Cc%7Cd"),
        (PIPES, ["a%7Cb"], "/p?x=a%257Cb"),
        (PIPES, {"a": "b", "c": 1}, "/p?x=a%7Cb%7Cc%7C1"),
        (PIPES | {"explode": True}, ["a|b", "c"], "/p?x=a%7Cb&x=c"),
        (PIPES | {"explode": True}, {"a": "b|c"}, "/p?a=b%7Cc"),
        (SPACES, ["a|b+c", "d"], "/p?x=a%7Cb%2Bc%20d"),
        (SPACES, ["a%20b", "c"], "/p?x=a%2520b%20c"),
        (DEEP, {"a": "[b]"}, "/p?x%5Ba%5D=%5Bb%5D"),
        (given("x", "query", **DELIMITED), ["a,b", "c"], "/p?x=a%2Cb,c"),
        (given("x", "query", **DELIMITED), {"a": "1,b"}, "/p?x=a,1%2Cb"),
        (HEADER, ["a", "b"], "a,b"),
        (HEADER, {"a": "b=c"}, "a,b=c"),
        (HEADER | {"explode": True}, {"a": "1", "b": "2=3"}, "a=1,b=2=3"),
    ],
)
async def test_what_stays_one_value_is_sent(
    parameter: Any, value: Any, sent: str
) -> None:
    with web_api() as api:
        values = operation("/p", parameters=[parameter])
        assert told(await called(api, values, {"x": value})) == ""
        [request] = api.requests

        is_header = parameter["in"] == "header"
        assert (request.header("x") if is_header else request.target) == sent


async def test_cookies_cannot_be_added_to() -> None:
    values = operation("/p", parameters=[given("c", "cookie"), given("d", "cookie")])
    with web_api() as api:
        await called(api, values, {"c": "1; admin=1", "d": "2"})

        assert api.requests[0].header("Cookie") == "c=1%3B%20admin%3D1; d=2"


@pytest.mark.parametrize(
    ("media_type", "value", "body"),
    [
        ("application/json", {"a": ["ü", None]}, '{"a":["ü",null]}'),
        ("application/vnd.x+json; charset=utf-8", [1], "[1]"),
        (
            "application/x-www-form-urlencoded",
            {"a": "b&c", "d": [1, 2]},
            "a=b%26c&d=1&d=2",
        ),
        ("text/plain", "plain\r\ntext", "plain\r\ntext"),
    ],
)
async def test_a_body_is_written_as_its_type_says(
    media_type: str, value: Any, body: str
) -> None:
    content: Any = {media_type: {}, "multipart/form-data": {}}
    values = operation("/p", "post", requestBody={"required": True, "content": content})
    with web_api() as api:
        assert told(await called(api, values, {"body": value})) == ""
        [sent] = api.requests

        assert (sent.method, sent.body.decode()) == ("POST", body)
        assert sent.header("Content-Type") == media_type.partition(";")[0]
        assert sent.header("Content-Length") == str(len(sent.body))


async def test_what_a_person_changed_is_what_is_sent() -> None:
    async def shorter(request: ApprovalRequest) -> Approve:
        del request
        return Approve(
            approver="anna", arguments={"id": "8", "body": {"note": "short"}}
        )

    content: Any = {"application/json": {}}
    values = operation(
        *("/p/{id}", "post"),
        parameters=[given("id", "path")],
        requestBody={"required": True, "content": content},
    )
    guard = ActionGuard(
        [AgentPolicy(agent_id="a", ask=["api__act"])],
        approvals=Approvals(handler=shorter),
    )
    with web_api() as api:
        toolset = OpenAPIToolset(
            "api", json.dumps(values), api.url, pins=None, networks=NETWORKS
        )
        async with toolset:
            executor = ConcurrentExecutor(ToolRegistry(toolset.tools), guard=guard)
            asked = {"id": "7", "body": {"note": "a long one"}}
            call = {"id": "1", "name": "api__act", "arguments": asked, "agent_id": "a"}
            assert told(await executor.call(call)) == ""
        [sent] = api.requests

    assert (sent.target, sent.body) == ("/p/8", b'{"note":"short"}')


# Secrets.

SCHEMES: dict[str, Any] = {
    "header": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "query": {"type": "apiKey", "in": "query", "name": "key"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "sid"},
    "bearer": {"type": "http", "scheme": "Bearer"},
    "basic": {"type": "http", "scheme": "basic"},
    "oauth": {"type": "oauth2", "flows": {}},
}


def secured(*alternatives: Any, **more: Any) -> dict[str, Any]:
    values = operation("/p", security=list(alternatives), **more)
    return values | {"components": {"securitySchemes": SCHEMES}}


@pytest.mark.parametrize(
    ("scheme", "header", "text"),
    [
        ("header", "X-Key", SECRET),
        ("cookie", "Cookie", "sid=correct-horse%2Fbattery%2Bstaple"),
        ("bearer", "Authorization", f"Bearer {SECRET}"),
        ("oauth", "Authorization", f"Bearer {SECRET}"),
        (
            "basic",
            "Authorization",
            "Basic Y29ycmVjdC1ob3JzZS9iYXR0ZXJ5K3N0YXBsZQ==",
        ),
    ],
)
async def test_a_secret_goes_where_its_scheme_says(
    scheme: str, header: str, text: str
) -> None:
    with web_api() as api:
        values = secured({scheme: []})
        assert told(await called(api, values, {}, secrets={scheme: SECRET})) == ""

        assert api.requests[0].header(header) == text
        assert api.targets == ["/p"]


async def test_the_first_set_of_schemes_with_secrets_is_used() -> None:
    both: Any = {"header": [], "query": []}
    values = secured({}, {"cookie": []}, both, {"bearer": []})
    secrets = {"header": "hhhh", "query": "q q", "bearer": "bbbb"}
    with web_api() as api:
        await called(api, values, {}, secrets=secrets)
        await called(api, values, {})
        sent, anonymous = api.requests

        assert (sent.header("X-Key"), sent.target) == ("hhhh", "/p?key=q%20q")
        assert sent.header("Authorization") is None
        assert (anonymous.header("X-Key"), anonymous.target) == (None, "/p")


@pytest.mark.promise("E-131")
async def test_no_argument_takes_the_place_of_a_secret() -> None:
    """A free-form object in the query may have any key, `key` too."""
    values = secured({"query": []}, parameters=[given("x", "query", schema=MAP)])
    with web_api() as api:
        result = await called(
            api, values, {"x": {"KEY": "mine"}}, secrets={"query": SECRET}
        )

        assert "not for a caller to give" in told(result)
        assert api.requests == []


@pytest.mark.promise("E-131")
@pytest.mark.parametrize("scheme", ["query", "basic", "header"])
@pytest.mark.parametrize("kind", ["application/json", "text/plain", "image/png"])
@pytest.mark.parametrize("status", [200, 403])
async def test_a_secret_that_an_answer_repeats_is_hidden(
    scheme: str, kind: str, status: int
) -> None:
    secret = "user:correct-horse"
    encoded = "dXNlcjpjb3JyZWN0LWhvcnNl"
    told_back = ["you sent", "Basic " + encoded, "user%3Acorrect-horse"]
    echo = json.dumps({secret: told_back, "password": "correct-horse"})
    values = secured({scheme: []})
    with web_api() as api:
        target = "/p?key=user%3Acorrect-horse" if scheme == "query" else "/p"
        api.answer(target, echo.encode(), status, Content_Type=kind)
        result = await called(api, values, {}, secrets={scheme: secret})
        seen = result.to_text() + repr(result) + told(result)

        assert api.targets == [target]
        for form in (secret, encoded, "correct-horse", secret.encode().hex()):
            assert form not in seen
        assert "dXNlcjpjb3Jy" not in seen
        if kind != "image/png":
            assert "[secret]" in seen


@pytest.mark.promise("E-131")
async def test_a_secret_is_in_no_schema_record_or_error() -> None:
    values = secured({"query": []}, parameters=[given("n", "query")])
    values = json.loads(json.dumps(values))
    with web_api() as api:
        api.answer(
            f"/p?key={SECRET.replace('/', '%2F').replace('+', '%2B')}",
            b"x",
            302,
            Location="http://evil/",
        )
        toolset = OpenAPIToolset(
            *("api", json.dumps(values), api.url),
            pins=None,
            networks=NETWORKS,
            secrets={"query": SECRET},
        )
        async with toolset:
            executor = ConcurrentExecutor(ToolRegistry(toolset.tools), guard=None)
            call = {"id": "1", "name": "api__act", "arguments": {}}
            result = await executor.call(call)
            [record] = executor.records.query()
        [tool] = toolset.tools

        assert "302" in told(result)
        shown = repr((result, record, tool.parameters, tool.definition_hash, toolset))
        shown += json.dumps(
            [definition.to_json() for definition in toolset.definitions]
        )
        assert "correct-horse" not in shown
