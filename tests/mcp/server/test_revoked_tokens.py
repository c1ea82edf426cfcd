"""MCP over HTTP: what ends with a token."""

from __future__ import annotations

from pathlib import Path

import anyio
import httpx2
import pytest

from toolcell.host.http.tokens import TokenStore

from ...support.mcp.by_hand import bearer, opened
from ...support.mcp.served_hosts import INITIALIZE, http_served, make_token

pytestmark = pytest.mark.anyio


async def test_a_revoked_token_ends_at_the_next_request(tmp_path: Path) -> None:
    secret = make_token(tmp_path)
    async with http_served(tmp_path) as server, httpx2.AsyncClient(timeout=60) as http:
        session = await opened(http, server, secret)
        with TokenStore(tmp_path / "state" / "tokens.db") as store:
            store.revoke(store.all()[0].id)
        headers = {**bearer(secret), "Mcp-Session-Id": session}
        answer = await http.post(
            server.url, json={**INITIALIZE, "id": 2}, headers=headers
        )

    assert answer.status_code == 401


@pytest.mark.promise("R67")
async def test_a_stream_ends_with_its_token(tmp_path: Path) -> None:
    secret = make_token(tmp_path, "a")
    async with http_served(tmp_path) as server, httpx2.AsyncClient(timeout=60) as http:
        session = await opened(http, server, secret)
        headers = {**bearer(secret), "mcp-session-id": session}
        with anyio.fail_after(60), pytest.raises(httpx2.TransportError):
            async with http.stream("GET", server.url, headers=headers) as answer:
                assert answer.status_code == 200
                with TokenStore(tmp_path / "state" / "tokens.db") as tokens:
                    tokens.revoke(secret.split("_")[1])
                async for _ in answer.aiter_bytes():
                    pass
