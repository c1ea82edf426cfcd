"""Logins of the host at an authorization server, for an MCP server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from toolcell.core import ConfigError, ToolExecutionError, ToolResult
from toolcell.tools import MCPToolset
from toolcell.tools.spi import MCPEndpoint, OAuthLogin

from ...support.mcp.http_server import LOGIN, Server, serving
from ...support.polling import until
from ...support.sample_tools import call, executor

pytestmark = pytest.mark.anyio


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


async def ask(toolset: MCPToolset, name: str, call_id: str = "") -> ToolResult:
    return await executor(*toolset.tools).call(call(f"test__{name}", call_id))


def logging_in(server: Server, issuer: str, **fields: Any) -> MCPToolset:
    given = {"client_id": "me", "client_secret": "hunter2", **fields}
    server.released.set()
    endpoint = MCPEndpoint(url=server.url, login=OAuthLogin(issuer=issuer, **given))
    return MCPToolset("test", endpoint, pins=None, max_message_bytes=1_000_000)


@pytest.mark.parametrize(
    ("path", "described_at", "scope"),
    [
        ("", "/.well-known/oauth-authorization-server", None),
        ("/a", "/.well-known/oauth-authorization-server/a", "some"),
        ("/a/", "/a/.well-known/openid-configuration", "some"),
    ],
)
async def test_a_login_gets_a_token_and_another_one_when_that_ends(
    server: Server, path: str, described_at: str, scope: str | None
) -> None:
    server.token, server.described_at = "first", described_at
    server.issuer += path
    async with logging_in(server, server.issuer, scope=scope) as toolset:
        assert (await ask(toolset, "echo", "1")).ok
        assert len(server.asked) == 1
        server.token = "second"
        assert (await ask(toolset, "echo", "2")).ok

    assert server.called == ["echo", "echo"]
    expected = {"grant_type": ["client_credentials"], "resource": [server.url]}
    assert server.asked == [expected | ({"scope": [scope]} if scope else {})] * 2
    with_secret = {path for _, path, sent in server.seen if sent == LOGIN}
    assert with_secret == {"/token"}


async def test_a_server_does_not_say_where_credentials_go(server: Server) -> None:
    with serving() as other, serving() as issuer:
        server.elsewhere = other.origin
        server.token = issuer.token = "token"
        async with logging_in(server, issuer.origin) as toolset:
            server.token = "other"
            assert not (await ask(toolset, "echo")).ok

    assert (server.asked, other.seen) == ([], [])
    # One for the token that was refused.
    assert len(issuer.asked) == 2


@pytest.mark.parametrize(
    ("named", "value", "reason"),
    [
        ("issuer", "https://elsewhere.test", "no metadata of that issuer"),
        ("token_endpoint", "http://elsewhere.test/token", "no token endpoint"),
        ("token_endpoint", "https://[", "does not answer as it should"),
        ("token", "a\nb", "gave no token"),
        ("refuses", True, r"gave no token \(HTTP status 401\)"),
    ],
)
async def test_a_login_that_fails_says_why(
    server: Server,
    named: str,
    value: Any,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.token = "token"
    setattr(server, named, value)
    with pytest.raises(ToolExecutionError, match=f"its login failed: .*{reason}") as no:
        async with logging_in(server, server.origin):
            pass

    assert "/mcp" not in {path for _, path, _ in server.seen}
    assert "hunter2" not in str(no.value) + caplog.text


async def test_an_issuer_that_never_answers_is_given_up(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcell.tools.external.login._LOGIN_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        issuer = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ToolExecutionError, match="does not answer as it should"):
            async with logging_in(server, issuer):
                pass


async def test_a_login_that_is_refused_later_costs_its_call_alone(
    server: Server,
) -> None:
    server.token = "first"
    async with logging_in(server, server.origin) as toolset:
        server.token, server.refuses = "second", True
        lost = await ask(toolset, "echo", "1")
        server.refuses = False
        assert (await ask(toolset, "echo", "2")).ok

    assert lost.status == "error"
    assert server.called == ["echo"]


async def test_calls_with_a_token_do_not_wait_for_each_other(server: Server) -> None:
    server.token = "token"
    async with logging_in(server, server.origin) as toolset:
        server.released.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, toolset, "never", "1")
            await until(lambda: server.called == ["never"])
            assert (await ask(toolset, "echo", "2")).ok
            server.released.set()


async def test_a_refusal_that_never_ends_is_cut_off(server: Server) -> None:
    server.token = "token"
    async with logging_in(server, server.origin) as toolset:
        server.floods = True
        with anyio.fail_after(30):
            assert not (await ask(toolset, "echo", "1")).ok
        server.floods = False


@pytest.mark.parametrize(
    ("url", "issuer"),
    [("https://a.test/", "http://b.test"), ("http://a.test/", "https://b.test")],
)
def test_a_login_is_sent_where_nobody_reads_it(url: str, issuer: str) -> None:
    with pytest.raises(ConfigError, match="sent over https, or to a loopback"):
        login = OAuthLogin(issuer=issuer, client_id="me", client_secret="hunter2")
        MCPEndpoint(url=url, login=login)
