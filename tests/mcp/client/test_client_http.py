"""MCP servers over HTTP that fail, forget, lie or mean harm."""

from __future__ import annotations

import json
import time
import webbrowser
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from toolcell.core import ConfigError, ToolExecutionError, ToolResult
from toolcell.tools import MCPToolset
from toolcell.tools.mcp_client.http_bodies import read_events
from toolcell.tools.mcp_client.message_limits import Pace
from toolcell.tools.spi import MCPEndpoint

from ...support.mcp.http_server import SECRET, Server, serving
from ...support.mcp.servers import be_patient
from ...support.polling import until
from ...support.sample_tools import call, executor

pytestmark = pytest.mark.anyio


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


def toolset_of(server: Server, **options: Any) -> MCPToolset:
    endpoint = MCPEndpoint(url=server.url, headers={"Authorization": SECRET})
    options = {"max_message_bytes": 1_000_000, **options}
    server.released.set()
    return MCPToolset("test", endpoint, pins=None, **options)


async def ask(toolset: MCPToolset, name: str, call_id: str = "") -> ToolResult:
    return await executor(*toolset.tools).call(call(f"test__{name}", call_id))


@pytest.mark.promise("E-127")
async def test_the_secret_goes_to_its_server_and_nowhere_else(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with serving() as other:
        server.elsewhere = other.url
        async with toolset_of(server) as toolset:
            assert (await ask(toolset, "echo")).ok
            away = await ask(toolset, "away")
            assert (await ask(toolset, "echo")).ok

    assert away.status == "error"
    assert other.seen == []
    assert {authorization for _, _, authorization in server.seen} == {SECRET}
    assert "hunter2" not in repr(toolset.__dict__) + str(away)


@pytest.mark.promise("E-130")
async def test_a_server_that_wants_a_login_is_told_of_and_not_followed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webbrowser, "open", None)
    server.is_open = False
    with pytest.raises(ToolExecutionError, match="HTTP status 401"):
        async with toolset_of(server):
            pass

    assert {path for _, path, _ in server.seen} == {"/mcp"}


@pytest.mark.parametrize(
    "name", ["huge", "packed", "event", "many", "stream", "coded", "cut", "fault"]
)
async def test_an_answer_that_cannot_be_read_is_an_unknown_outcome(
    server: Server, name: str
) -> None:
    async with toolset_of(server) as toolset:
        began = time.process_time()
        result = await ask(toolset, name)
        assert time.process_time() - began < 20
        assert result.error is not None
        assert result.error.details == {"outcome": "unknown"}
        assert "\x1b" not in str(result.error)
        after = [await ask(toolset, "echo", str(number)) for number in range(2)]
        assert after[-1].ok

    assert server.called.count(name) == 1


@pytest.mark.promise("E-132")
@pytest.mark.parametrize("name", ["many", "stream"])
async def test_an_answer_of_many_values_is_never_read(
    server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mcp.types import jsonrpc_message_adapter

    sizes = []
    read = jsonrpc_message_adapter.validate_json

    def reads(data: Any, *arguments: Any, **options: Any) -> Any:
        sizes.append(len(data))
        return read(data, *arguments, **options)

    monkeypatch.setattr(jsonrpc_message_adapter, "validate_json", reads)
    async with toolset_of(server, max_message_bytes=16_000_000) as toolset:
        result = await ask(toolset, name)

    assert result.error is not None
    assert result.error.details == {"outcome": "unknown"}
    assert max(sizes, default=0) < 100_000


async def test_events_that_arrive_in_pieces_are_whole() -> None:
    text = b"data: 1\r\n\r\ndata: 2\n\ndata: 3\rdata: 4\r\rdata: 5"

    async def pieces(size: int) -> AsyncIterator[bytes]:
        for start in range(0, len(text), size):
            yield text[start : start + size]

    for size in (1, 2, 3, 5, len(text)):
        events = [event async for event in read_events(pieces(size), 100, Pace())]
        assert b"".join(events) == text
        assert [event.strip() for event in events] == [
            b"data: 1", b"data: 2", b"data: 3\rdata: 4", b"data: 5"
        ]  # fmt: skip


async def test_a_server_that_is_gone_is_told_of_and_found_again(server: Server) -> None:
    async with toolset_of(server) as toolset:
        server.is_open = False
        assert not (await ask(toolset, "echo", "1")).ok
        gone = await ask(toolset, "echo", "2")
        assert gone.error is not None and "HTTP status 401" in gone.error.message
        server.is_open = True
        assert (await ask(toolset, "echo", "3")).ok


@pytest.mark.promise("T10")
@pytest.mark.parametrize("code", [None, -32001])
async def test_a_forgotten_session_is_begun_anew(
    server: Server, code: int | None
) -> None:
    error = {"code": code, "message": "Session not found"}
    body = {"jsonrpc": "2.0", "id": None, "error": error}
    server.forgotten = b"" if code is None else json.dumps(body).encode()
    async with toolset_of(server) as toolset:
        assert (await ask(toolset, "forget")).ok
        lost = await ask(toolset, "echo", "1")
        assert (await ask(toolset, "echo", "2")).ok

    # It was not made, and that is known.
    assert lost.error is not None and lost.error.details == {"code": code or -32600}
    assert server.called == ["forget", "echo"]


async def test_a_server_that_never_answers_holds_nothing_up(server: Server) -> None:
    async with toolset_of(server, timeout_seconds=0.5) as toolset:
        server.released.clear()
        assert (await ask(toolset, "never")).status == "timeout"
        be_patient(toolset)
        assert (await ask(toolset, "echo")).ok
        began = time.monotonic()
    # The server does not answer the farewell either.
    assert time.monotonic() - began < 60
    await until(lambda: ("DELETE", "/mcp", SECRET) in server.seen)


async def test_no_server_at_all(server: Server) -> None:
    endpoint = MCPEndpoint(url="http://127.0.0.1:9/mcp")
    with pytest.raises(ToolExecutionError, match="cannot be reached"):
        async with MCPToolset("test", endpoint, pins=None):
            pass


@pytest.mark.parametrize(
    "url",
    ["", "ftp://x/", "file:///etc/passwd", "http://", "https://u:hunter2@x/", "//x"],
)
def test_a_url_is_one_of_http_without_a_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MCPEndpoint(url=url)

    assert "hunter2" not in str(caught.value)
