"""What a document has and a toolset does not: it is told, with the reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from toolcell.core import ConfigError
from toolcell.tools import ConcurrentExecutor, OpenAPIToolset, ToolRegistry
from toolcell.tools.spi import OpenAPIPins

from ...support.web.api import NETWORKS, WebAPI, document, web_api

pytestmark = pytest.mark.anyio


@pytest.fixture
def api() -> Iterator[WebAPI]:
    with web_api() as found:
        yield found


async def opened(
    api: WebAPI, paths: dict[str, Any], pins: OpenAPIPins | None = None, **options: Any
) -> OpenAPIToolset:
    """Return a toolset of a document that the API serves itself."""
    api.answer("/api.json", json.dumps(document(paths)).encode())
    url = f"{api.url}/api.json"
    toolset = OpenAPIToolset(
        "api", url, api.url, pins=pins, networks=NETWORKS, **options
    )
    async with toolset:
        return toolset


async def content(toolset: OpenAPIToolset, name: str) -> Any:
    executor = ConcurrentExecutor(ToolRegistry(toolset.tools), guard=None)
    result = await executor.call({"id": "1", "name": name, "arguments": {}})
    return result.content if result.error is None else result.error.message


def act(name: str) -> dict[str, Any]:
    return {"operationId": name, "responses": {"200": {"description": "ok"}}}


def many(count: int) -> dict[str, Any]:
    return {f"/{number}": {"get": act(f"op{number}")} for number in range(count)}


async def test_operations_beyond_the_most_are_counted(api: WebAPI) -> None:
    whole = await opened(api, many(1_000))
    assert (len(whole.tools), whole.omitted) == (1_000, 0)
    cut = await opened(api, many(1_023) | {"/one": {"put": act("op0")}})

    # A name of the first ones is seen again however late it comes.
    assert len(cut.tools) == 999
    assert cut.unusable == {"op0": "two tools have this name"}
    assert cut.omitted == 23
    assert await content(cut, "api__op999") == {"method": "GET", "target": "/999"}


async def test_only_operations_that_are_wanted_are_counted(api: WebAPI) -> None:
    some = await opened(api, many(3_000), operations=["op1*", "op2999"])

    # 1, 10 to 19, 100 to 199, 1000 to 1999 and 2999.
    assert (len(some.tools), some.omitted) == (1_000, 112)


async def test_an_approved_operation_beyond_the_most_says_so(
    api: WebAPI, caplog: pytest.LogCaptureFixture
) -> None:
    small = await opened(api, {"/x": {"get": act("last")}})
    pins = OpenAPIPins({"api": small.definitions})
    grown = await opened(api, many(1_000) | {"/x": {"get": act("last")}}, pins)

    assert "not among the first 1,000" in await content(grown, "api__last")
    assert grown.omitted == 1
    assert "the API api lists 1 tools more than it may have" in caplog.messages


async def test_a_pattern_that_matches_nothing_is_refused(api: WebAPI) -> None:
    paths = {"/r": {"get": act("repos/get")}, "/s": {"get": act("repos/list")}}
    with pytest.raises(ConfigError, match=r"a name like 'repos/\*' \(") as caught:
        await opened(api, paths, operations=["repos/*"])

    assert "repos_get, repos_list" in str(caught.value.hint)
    with pytest.raises(ConfigError, match=r"a name like 'gett' or 'x\*' \("):
        await opened(api, paths, operations=["repos_get", "gett", "x*"])
    both = await opened(api, paths, operations=["repos_*", "*list"])
    assert [tool.name for tool in both.tools] == ["api__repos_get", "api__repos_list"]


async def test_the_names_in_the_hint_are_bounded_and_visible(api: WebAPI) -> None:
    paths = many(500) | {f"/\u202e{'x' * 200}": 7}
    with pytest.raises(ConfigError) as caught:
        await opened(api, dict(reversed(paths.items())), operations=["none"])

    hint = str(caught.value.hint)
    assert "and 491 more" in hint
    assert hint.isprintable() and len(hint) < 400
    with pytest.raises(ConfigError) as caught:
        await opened(api, {}, operations=["none"])
    assert "no operations" in str(caught.value.hint)


async def test_a_pattern_whose_operations_are_gone_stops_those_alone(
    api: WebAPI,
) -> None:
    paths = {"/a": {"get": act("a")}, "/b": {"get": act("b")}}
    pins = OpenAPIPins({"api": (await opened(api, paths)).definitions})
    del paths["/b"]
    less = await opened(api, paths, pins, operations=["a", "b"])

    assert await content(less, "api__a") == {"method": "GET", "target": "/a"}
    assert "does not offer it any more" in await content(less, "api__b")


OUTSIDE = "it refers to what is not in its document"


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"$ref": "other.yaml"}, OUTSIDE),
        ({"$ref": "https://example.com/paths.json#/a"}, OUTSIDE),
        ({"$ref": "file:///etc/passwd"}, OUTSIDE),
        ({"$ref": "other.yaml", "get": act("beside")}, OUTSIDE),
        ({"$ref": "#/components/pathItems/None"}, OUTSIDE),
        ({"$ref": 7}, OUTSIDE),
        ({"$ref": "#/paths/~1p"}, "it refers to itself"),
        ({"$ref": "#/info/title"}, "it is no object"),
        ({"$ref": "#/paths/~1q", "get": act("x")}, "what it refers to disagree"),
        ({"$ref": "#/paths/x-on", "put": act("x")}, "what it refers to disagree"),
        ([], "it is no object"),
        (None, "it is no object"),
    ],
)
@pytest.mark.parametrize("operations", [["*"], ["here"]])
async def test_a_path_that_cannot_be_read_is_told(
    api: WebAPI, item: Any, reason: str, operations: list[str]
) -> None:
    paths = {
        "/p": item,
        "/q": {"get": act("here")},
        "x-on": {"$ref": "#/paths/~1q", "delete": act("more")},
    }
    toolset = await opened(api, paths, operations=operations)

    assert toolset.unusable.keys() == {"/p"}
    assert reason in toolset.unusable["/p"]
    assert [tool.name for tool in toolset.tools] == ["api__here"]
    assert api.targets == ["/api.json"]


async def test_a_path_has_what_it_refers_to_and_what_is_beside(api: WebAPI) -> None:
    paths = {
        "/a": {"$ref": "#/paths/~1b", "put": act("put")},
        "/b": {"delete": act("del") | {"parameters": []}},
    }
    toolset = await opened(api, paths, operations=["put"])

    assert toolset.unusable == {}
    assert await content(toolset, "api__put") == {"method": "PUT", "target": "/a"}


async def test_an_operation_that_is_a_reference_is_told(api: WebAPI) -> None:
    toolset = await opened(api, {"/a": {"get": {"$ref": "other.yaml#/get"}}})

    assert toolset.tools == []
    assert "refers to another operation" in toolset.unusable["get_a"]


async def test_paths_outside_count_for_the_most(api: WebAPI) -> None:
    outside = {f"/{number}": {"$ref": "paths.yaml"} for number in range(1_500)}
    toolset = await opened(api, outside)

    assert (len(toolset.unusable), toolset.omitted) == (1_000, 500)
