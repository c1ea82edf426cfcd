"""MCP over HTTP: what ends with a token."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from toolcell.host.http import serving
from toolcell.host.http.tokens import TokenStore
from toolcell.tools import tool

from ...support.mcp.by_hand import bearer, opened, request
from ...support.mcp.served_hosts import (
    CONFIG,
    INITIALIZE,
    LEGACY,
    MODES,
    http_served,
    make_token,
)
from ...support.polling import PATIENCE, until

pytestmark = pytest.mark.anyio

PATIENT = CONFIG.replace("approval_seconds = 0.05", "approval_seconds = 3600")


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


@pytest.mark.promise("R67")
@pytest.mark.parametrize("mode", MODES)
async def test_calls_that_run_or_wait_for_a_person_end_with_their_token(
    tmp_path: Path, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LOOK_SECONDS", 0.02)
    runs = anyio.Event()

    @tool(name="own_wait")
    async def wait() -> None:
        """Wait."""
        runs.set()
        await anyio.sleep_forever()

    async def call(secret: str, name: str) -> None:
        asked = request(name, {})
        headers = {**asked["headers"], **bearer(secret)}
        if mode == LEGACY:
            headers = {
                **bearer(secret),
                "Mcp-Session-Id": await opened(http, server, secret),
            }
        with contextlib.suppress(httpx2.TransportError):
            await http.post(server.url, json=asked["json"], headers=headers)

    mine, other = make_token(tmp_path), make_token(tmp_path)
    async with (
        http_served(tmp_path, wait, text=PATIENT) as server,
        httpx2.AsyncClient(timeout=PATIENCE) as http,
        anyio.create_task_group() as tasks,
    ):
        calls, approvals = server.server.calls, server.server.host.approvals
        for secret, name in (
            (mine, "own_wait"),
            (mine, "get_today_date"),
            (other, "own_wait"),
        ):
            tasks.start_soon(call, secret, name)
        with anyio.fail_after(PATIENCE):
            await runs.wait()
            while not await approvals.waiting("a"):
                await anyio.sleep(0.005)
        await until(lambda: len(calls) == 3)
        with TokenStore(tmp_path / "state" / "tokens.db") as tokens:
            tokens.revoke(mine.split("_")[1])
        await until(lambda: len(calls) == 1)
        tasks.cancel_scope.cancel()
