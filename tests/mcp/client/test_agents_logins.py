"""Logins of agents for an MCP server: whose token a call is made with."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcell.core import ToolResult
from toolcell.tools import MCPToolset
from toolcell.tools.external.kept_tokens import Tokens
from toolcell.tools.external.login_auth import purpose_of
from toolcell.tools.mcp_client.definition import MCPPins, mcp_definition
from toolcell.tools.spi import KeptTokens, MCPEndpoint, OAuthLogin

from ...support.mcp.http_server import Server, serving
from ...support.mcp.servers import definition
from ...support.sample_tools import call, executor

pytestmark = pytest.mark.anyio


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        server.released.set()
        server.token = "of-ann"
        yield server


@pytest.fixture
def kept(tmp_path: Path) -> KeptTokens:
    return KeptTokens(file=tmp_path / "desk", key=b64encode(b"k" * 32).decode())


def login_at(server: Server, kept: KeptTokens, *, shared: bool) -> OAuthLogin:
    return OAuthLogin(issuer=server.origin, client_id="me", kept=kept, shared=shared)


def toolset_at(server: Server, kept: KeptTokens, *, shared: bool = False) -> MCPToolset:
    login = login_at(server, kept, shared=shared)
    pins = MCPPins({"test": [mcp_definition(definition("echo"))]})
    return MCPToolset("test", MCPEndpoint(url=server.url, login=login), pins=pins)


def keep(server: Server, kept: KeptTokens, access: str) -> None:
    login = login_at(server, kept, shared=False)
    kept.write(Tokens(access=access), purpose_of(login, server.url, kept))


async def echo(toolset: MCPToolset, agent_id: str) -> ToolResult:
    return await executor(*toolset.tools).call(
        call("test__echo").model_copy(update={"agent_id": agent_id}),
        raise_on_error=False,
    )


async def test_each_agent_calls_with_its_own_login(
    server: Server, kept: KeptTokens
) -> None:
    server.others = ["of-bob"]
    keep(server, kept, "of-nobody")
    for agent_id in ("ann", "bob"):
        keep(server, kept.of_agent(agent_id), f"of-{agent_id}")
    async with toolset_at(server, kept, shared=True) as toolset:
        assert (await echo(toolset, "ann")).ok
        assert (await echo(toolset, "bob")).ok
    assert server.callers == ["Bearer of-ann", "Bearer of-bob"]


async def test_an_agent_without_a_login_gets_no_one_else_s(
    server: Server, kept: KeptTokens
) -> None:
    keep(server, kept, "of-ann")
    keep(server, kept.of_agent("ann"), "of-ann")
    async with toolset_at(server, kept) as toolset:
        assert (await echo(toolset, "ann")).ok
        for agent_id in ("bob", "ANN", "ann ", "", "desk"):
            refused = await echo(toolset, agent_id)
            assert refused.error is not None
            assert "no one is logged in" in refused.error.message
            assert "tools login desk --agent " in (refused.error.hint or "")
    assert server.called == ["echo"]


async def test_a_shared_login_serves_agents_without_their_own(
    server: Server, kept: KeptTokens
) -> None:
    keep(server, kept, "of-ann")
    async with toolset_at(server, kept, shared=True) as toolset:
        assert (await echo(toolset, "bob")).ok
        # A login that has ended is no reason to act as someone else.
        keep(server, kept.of_agent("bob"), "ended")
        refused = await echo(toolset, "bob")
    assert refused.error is not None
    assert "--agent bob" in (refused.error.hint or "")
    assert server.called == ["echo"]


async def test_the_login_of_one_agent_cannot_be_laid_in_another_s_place(
    server: Server, kept: KeptTokens
) -> None:
    keep(server, kept.of_agent("ann"), "of-ann")
    kept.of_agent("ann").file.rename(kept.of_agent("bob").file)
    async with toolset_at(server, kept) as toolset:
        refused = await echo(toolset, "bob")
    assert refused.error is not None
    assert "URL or agent, or was changed" in refused.error.message
    assert not server.called


async def test_a_tool_that_changed_for_one_agent_is_the_approved_one_for_others(
    server: Server, kept: KeptTokens
) -> None:
    server.others, server.changed_for = ["of-bob"], "of-bob"
    for agent_id in ("ann", "bob"):
        keep(server, kept.of_agent(agent_id), f"of-{agent_id}")
    async with toolset_at(server, kept) as toolset:
        found = [await echo(toolset, agent_id) for agent_id in ("ann", "bob") * 2]
    assert [each.ok for each in found] == [True, False, True, False]
    assert found[3].error is not None
    assert "changed it since it was approved" in found[3].error.message
    assert server.called == ["echo", "echo"]
