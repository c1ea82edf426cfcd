"""MCP over HTTP: what is too much, too slow, or for nobody."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from anyio.abc import SocketStream
from mcp.server.auth.provider import AccessToken

from toolcell.core import ConfigError
from toolcell.core.text.strict_json import read_json
from toolcell.host import Host
from toolcell.host.http import bodies
from toolcell.host.http.agent_shares import AgentShares, TooManyError
from toolcell.host.http.serving import listen
from toolcell.host.mcp.auth import FailClosedVerifier
from toolcell.host.mcp.http_server import HTTPServer
from toolcell.tools import ToolContext, tool

from ...support.mcp.by_hand import ACCEPTED, bearer
from ...support.mcp.served_hosts import (
    CONFIG,
    INITIALIZE,
    MODERN,
    MODES,
    ServedMCP,
    http_client,
    http_served,
    make_token,
    said,
    settings,
)

pytestmark = pytest.mark.anyio

PING = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"})
OPEN = f'profile = "development"\n{CONFIG}[auth]\nunauthenticated = true\n'


def limited(**limits: int) -> str:
    lines = "".join(f"{name} = {value}\n" for name, value in limits.items())
    return CONFIG.replace("[server]\n", f"[server]\n{lines}")


async def spoken(server: ServedMCP, text: str) -> SocketStream:
    """Return a connection over which so much of a request has gone."""
    name, port = server.url.removeprefix("http://").removesuffix("/mcp").split(":")
    stream = await anyio.connect_tcp(name, int(port))
    await stream.send(text.replace("\n", "\r\n").encode())
    return stream


def head(secret: str, length: int) -> str:
    return (
        "POST /mcp HTTP/1.1\nHost: localhost:{port}\n"
        f"Authorization: Bearer {secret}\nContent-Type: application/json\n"
        f"Accept: {ACCEPTED['Accept']}\nContent-Length: {length}\n\n"
    )


async def answered(server: ServedMCP, text: str) -> int:
    """Return the status that a request gets, though it is not all there."""
    return int((await head_of_answer(server, text)).split()[1])


async def head_of_answer(server: ServedMCP, text: str) -> bytes:
    port = server.url.removesuffix("/mcp").rpartition(":")[2]
    async with await spoken(server, text.replace("{port}", port)) as stream:
        with anyio.fail_after(60):
            return await stream.receive()


@pytest.mark.promise("E-129")
async def test_everybody_comes_in_by_the_loopback_address_alone(tmp_path: Path) -> None:
    async with Host(settings(tmp_path, OPEN)) as host:
        with listen("0.0.0.0:0") as everywhere:
            with pytest.raises(ConfigError, match="loopback"):
                async with HTTPServer(host, everywhere).open():
                    pass


async def test_everybody_is_some_agent(tmp_path: Path) -> None:
    text = OPEN.replace('[server]\nagent_id = "a"\n', "[server]\n")
    async with Host(settings(tmp_path, text)) as host:
        with listen("127.0.0.1:0") as listening:
            with pytest.raises(ConfigError, match=r"server\.agent_id"):
                async with HTTPServer(host, listening).open():
                    pass


@pytest.mark.promise("E-132")
async def test_a_body_is_counted_as_it_comes(tmp_path: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 1_000

    secret = make_token(tmp_path)
    text = limited(max_body_bytes=10_000)
    async with (
        http_served(tmp_path, text=text) as server,
        httpx2.AsyncClient(timeout=60) as http,
    ):
        unsaid = await http.post(server.url, content=pieces(), headers=bearer(secret))
        # Nothing of it has to come.
        said_before = await answered(server, head(secret, 10_001))

    assert (unsaid.status_code, said_before) == (413, 413)


@pytest.mark.promise("E-132")
async def test_a_body_that_does_not_come_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.05)
    secret = make_token(tmp_path)
    async with http_served(tmp_path) as server:
        assert await answered(server, head(secret, 100) + "{") == 408


async def test_requests_at_once_are_limited(tmp_path: Path) -> None:
    @tool(name="own_wait")
    async def wait() -> None:
        """Wait."""
        at_work.set()
        await done.wait()

    at_work, done = anyio.Event(), anyio.Event()
    secret = make_token(tmp_path)
    text = limited(max_requests=1)
    async with (
        http_served(tmp_path, wait, text=text) as server,
        http_client(server.url, secret, mode=MODERN) as client,
        httpx2.AsyncClient(timeout=60) as http,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(client.call_tool, "own_wait", {})
        await at_work.wait()
        second = await http.post(server.url, json=INITIALIZE, headers=bearer(secret))
        done.set()

    assert (second.status_code, second.headers["retry-after"]) == (503, "1")
    refusal = second.json()
    assert refusal["id"] == INITIALIZE["id"]
    assert refusal["error"]["message"] == "1 requests are in flight"
    assert refusal["error"]["data"] == {"reason": "busy", "retry_after": 1.0}


async def test_connections_are_limited(tmp_path: Path) -> None:
    secret = make_token(tmp_path)
    begun = head(secret, len(PING))
    async with http_served(tmp_path, text=limited(max_connections=2)) as server:
        port = server.url.removesuffix("/mcp").rpartition(":")[2]
        text = begun.replace("{port}", port)
        async with await spoken(server, text), await spoken(server, text):
            refused = await head_of_answer(server, begun + PING)

    assert refused.startswith(b"HTTP/1.1 503")
    assert b"retry-after: 1\r\n" in refused


@pytest.mark.promise("A23")
async def test_a_body_of_many_values_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []

    def seen(text: bytes) -> Any:
        read.append(len(text))
        return read_json(text)

    monkeypatch.setattr("toolcell.host.http.bodies.read_json", seen)
    secret = make_token(tmp_path)
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": []}}
    async with http_served(tmp_path) as server, httpx2.AsyncClient(timeout=60) as http:
        answers = []
        for value in ("[]," * 1_300_000, '"",' * 30_000, '1,"a' + "b,c" * 30_000):
            body = json.dumps(ping).replace("[]", f"[{value.rstrip(',')}]")
            content = body if "a" not in value else body.replace("b,c]", 'b,c"]')
            answer = await http.post(
                server.url, content=content, headers=bearer(secret), timeout=60
            )
            answers.append(answer.status_code)

    assert answers[:2] == [413, 413]
    assert answers[2] not in (413, 429)
    assert len(read) == 1


@pytest.mark.promise("A23")
async def test_an_agent_that_sends_too_much_is_told_to_wait_and_others_are_not(
    tmp_path: Path,
) -> None:
    one, other = make_token(tmp_path, "a"), make_token(tmp_path, "b")
    text = limited(max_bytes_per_second=65_536)
    async with (
        http_served(tmp_path, text=text) as server,
        httpx2.AsyncClient(timeout=60) as http,
    ):

        async def post(secret: str, content: str) -> httpx2.Response:
            headers = bearer(secret)
            return await http.post(server.url, content=content, headers=headers)

        large = await post(one, "[" + " " * 4_000_000 + "]")
        refused = await post(one, PING)
        allowed = await post(other, PING)
        health = await http.get(server.url.replace("/mcp", "/healthz"))

    assert large.status_code not in (413, 429)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 1
    data = refused.json()["error"]["data"]
    assert data["reason"] == "too_many_bytes"
    assert data["retry_after"] > 1
    assert allowed.status_code != 429
    assert health.status_code == 200


@pytest.mark.promise("A23")
def test_an_agent_has_no_more_requests_than_are_left_to_the_others() -> None:
    shares = AgentShares(8, 65_536, lambda: 0.0)
    with ExitStack() as stack:
        for agent, most in (("a", 4), ("b", 2), ("c", 1)):
            for _ in range(most):
                stack.enter_context(shares.request(agent))
            with pytest.raises(TooManyError, match="of this agent"):
                stack.enter_context(shares.request(agent))
        assert len(shares) == 7
    assert len(shares) == 0


def test_what_an_agent_sent_is_forgotten_in_time() -> None:
    now = 0.0
    shares = AgentShares(8, 100_000, lambda: now)
    assert shares.seconds_to_wait("a") == 0
    shares.charge("a", 300_000)
    owed = shares.seconds_to_wait("a")
    now += owed

    assert owed == pytest.approx(2.16384)
    assert shares.seconds_to_wait("a") == pytest.approx(0)
    assert shares.seconds_to_wait("b") == 0


@pytest.mark.promise("N18")
@pytest.mark.parametrize("mode", MODES)
async def test_a_call_that_ends_while_the_server_stops_reaches_its_client(
    tmp_path: Path, mode: Any
) -> None:
    """The official client asks for the list of tools before it hands out a result."""

    @tool(name="own_wait")
    async def wait() -> str:
        """Wait."""
        at_work.set()
        await done.wait()
        return "done"

    at_work, done = anyio.Event(), anyio.Event()
    found: list[Any] = []
    secret = make_token(tmp_path)
    async with http_served(tmp_path, wait) as server:
        async with http_client(server.url, secret, mode=mode) as client:

            async def call() -> None:
                found.append(said(await client.call_tool("own_wait", {})))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await at_work.wait()
                tasks.start_soon(_drained, server)
                # The web server wakes ten times a second, so to wait until every task
                # is blocked may take for ever.
                while not server.server.calls.draining:
                    await anyio.lowlevel.checkpoint()
                done.set()

    assert found == [{"result": "done"}]


async def _drained(server: ServedMCP) -> None:
    await server.server.calls.drain(60)
    server.stop()


@pytest.mark.promise("A29")
async def test_a_request_that_the_stop_meets_is_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = make_token(tmp_path)
    async with http_served(tmp_path) as server:
        port = server.url.removesuffix("/mcp").rpartition(":")[2]
        text = head(secret, 100).replace("{port}", port) + "{"
        async with await spoken(server, text) as stream:
            async with httpx2.AsyncClient(timeout=60) as http:
                assert (await http.get(server.url.replace("mcp", "healthz"))).is_success
            server.stop()
            with anyio.fail_after(60):
                answer = await stream.receive()

    assert answer.startswith(b"HTTP/1.1 503")
    assert "Exception in ASGI" not in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


async def ended(stream: SocketStream) -> None:
    """Wait until the server has closed a connection."""
    with anyio.fail_after(60), contextlib.suppress(anyio.EndOfStream):
        while True:
            await stream.receive()


@pytest.mark.promise("A16", "E-132")
@pytest.mark.parametrize(
    "begun",
    ["", "GET /healthz HTTP/1.1\nHost: ", head("no token", 100) + "{"],
)
async def test_a_head_that_does_not_come_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: str
) -> None:
    """Nor is what comes, drop by drop, after an answer."""
    monkeypatch.setattr("toolcell.host.http.serving.HEAD_SECONDS", 0.5)
    async with http_served(tmp_path) as server:
        port = server.url.removesuffix("/mcp").rpartition(":")[2]
        text = begun.replace("{port}", port)
        async with (
            await spoken(server, text) as stream,
            anyio.create_task_group() as tasks,
        ):

            async def drip() -> None:
                with contextlib.suppress(anyio.BrokenResourceError):
                    while True:
                        await stream.send(b"x")
                        await anyio.sleep(0.02)

            if begun:
                tasks.start_soon(drip)
            with contextlib.suppress(anyio.BrokenResourceError):
                await ended(stream)
            tasks.cancel_scope.cancel()


@pytest.mark.promise("A16")
async def test_who_sends_half_a_head_makes_room_for_who_sends_it_all(
    tmp_path: Path,
) -> None:
    secret = make_token(tmp_path)
    async with (
        http_served(tmp_path, text=limited(max_connections=3)) as server,
        AsyncExitStack() as stack,
    ):
        for _ in range(5):
            stream = await spoken(server, "GET /healthz HTTP/1.1\nX-Half: ")
            await stack.enter_async_context(stream)
        health = "GET /healthz HTTP/1.1\nHost: localhost:{port}\n\n"
        answers = [await answered(server, health) for _ in range(3)]
        answers.append(await answered(server, head(secret, len(PING)) + PING))

    assert answers[:3] == [200] * 3
    assert answers[3] != 503


class Known:
    """Knows every token, and says too much of it."""

    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(token=token, client_id="c", scopes=[], subject="a")


@pytest.mark.promise("E-127")
async def test_a_tokens_text_goes_no_further_than_its_verifier() -> None:
    found = await FailClosedVerifier(Known()).verify_token("secret")

    assert found is not None
    assert (found.subject, found.token) == ("a", "")


@pytest.mark.promise("E-134")
async def test_a_client_without_sessions_names_none(tmp_path: Path) -> None:
    @tool(name="own_run")
    async def run(context: ToolContext) -> str:
        """Say which run it is in."""
        return context.run_id or ""

    secret = make_token(tmp_path)
    named: dict[str, str] = {"Mcp-Session-Id": "of-another"}
    async with http_served(tmp_path, run) as server:
        runs = []
        for headers in (dict[str, str](), named):
            async with http_client(
                server.url, secret, headers=headers, mode=MODERN
            ) as client:
                runs.append(said(await client.call_tool("own_run", {}))["result"])

    assert runs[0] == runs[1]
    assert "of-another" not in runs[1]
