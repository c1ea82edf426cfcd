"""Answers of strangers that are half an answer, or name an odd charset."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from toolcell.core import ToolCall, ToolResult
from toolcell.core.text.charsets import decoded
from toolcell.tools import ConcurrentExecutor, OpenAPIToolset, ToolRegistry
from toolcell.tools.builtin import http_get_tool

from ..support.web.api import NETWORKS, WebAPI, operation, web_api

pytestmark = pytest.mark.anyio


async def fetched(api: WebAPI) -> ToolResult:
    port = urlsplit(api.url).port or 0
    get = http_get_tool(["127.0.0.1"], networks=NETWORKS, ports=[port])
    call = ToolCall(id="1", name="http_get", arguments={"url": f"{api.url}/p"})
    return await ConcurrentExecutor(ToolRegistry([get]), guard=None).call(call)


async def called(api: WebAPI, method: str) -> ToolResult:
    document = json.dumps(operation("/p", method))
    toolset = OpenAPIToolset("a", document, api.url, pins=None, networks=NETWORKS)
    async with toolset:
        [tool] = toolset.tools
        executor = ConcurrentExecutor(ToolRegistry([tool]), guard=None)
        return await executor.call(ToolCall(id="1", name=tool.name, arguments={}))


CUT: list[tuple[bytes, dict[str, str]]] = [
    (b"[1, 2, 3", {"Content_Length": "40"}),
    (b"access granted: no", {"Content_Length": "24", "Content_Type": "text/plain"}),
    (b"", {"Content_Length": "1"}),
    (b"5\r\n[1, 2", {"Transfer_Encoding": "chunked"}),
    (b"2\r\n[]\r\n", {"Transfer_Encoding": "chunked"}),
]


@pytest.mark.promise("R20")
@pytest.mark.parametrize(("body", "headers"), CUT)
async def test_half_an_answer_is_an_error(body: bytes, headers: dict[str, str]) -> None:
    with web_api() as api:
        api.answer("/p", body, 200, **headers)
        if "Transfer_Encoding" in headers:
            lines = api.answers["/p"].split(b"\r\n")
            kept = [line for line in lines if not line.startswith(b"Content-Length")]
            api.answers["/p"] = b"\r\n".join(kept)

        for result in (await fetched(api), await called(api, "get")):
            assert result.error is not None, result.content
        unsure = await called(api, "post")
        assert unsure.error is not None
        assert unsure.error.details.get("outcome") == "unknown"


async def test_a_whole_answer_is_none() -> None:
    with web_api() as api:
        api.answer("/p", b"[1, 2]")
        assert (await called(api, "get")).content == [1, 2]
        assert (await fetched(api)).ok
        api.answer("/p", b"", 204)
        assert (await called(api, "delete")).ok


@pytest.mark.promise("R49")
@pytest.mark.parametrize(
    "charset", ["punycode", "idna", "unicode_escape", "utf-7", "hex", "x" * 5_000]
)
async def test_a_charset_that_costs_is_read_as_utf_8(charset: str) -> None:
    data = "ü-".encode() + b"b" * 300_000
    with web_api() as api:
        api.answer("/p", data, Content_Type=f"text/plain; charset={charset}")
        result: Any = await fetched(api)

        assert result.content["text"][:5] == "ü-bbb"
        told: Any = await called(api, "get")
        assert told.content[:5] == "ü-bbb"
    begin = time.thread_time()
    assert decoded(data, charset)[:5] == "ü-bbb"
    assert time.thread_time() - begin < 1


@pytest.mark.parametrize(
    ("charset", "data"),
    [
        ("ISO-8859-1", b"\xfc"),
        ("shift_jis", "日".encode("shift_jis")),
        ("nope", b"\xc3\xbc"),
    ],
)
def test_a_usual_charset_is_read(charset: str, data: bytes) -> None:
    assert decoded(data, charset) in ("ü", "日")
