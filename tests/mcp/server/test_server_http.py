"""MCP over HTTP: who comes in, as whom, and what else is refused."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import MCPError
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken

from toolcell.core import ConfigError
from toolcell.host.http.serving import listen
from toolcell.host.http.tokens import TokenStore
from toolcell.tools import ToolContext, tool

from ...support.mcp.by_hand import ACCEPTED, bearer, opened
from ...support.mcp.served_hosts import (
    CONFIG,
    INITIALIZE,
    LEGACY,
    MODES,
    SUM,
    answering,
    http_client,
    http_served,
    make_token,
    said,
    settings,
)

pytestmark = pytest.mark.anyio


@pytest.mark.promise("E-127")
@pytest.mark.parametrize("mode", MODES)
async def test_a_token_says_which_agent_calls(tmp_path: Path, mode: Any) -> None:
    seen = []

    @tool(name="own_who")
    async def who(context: ToolContext) -> str:
        """Say who calls."""
        seen.append(get_access_token())
        return context.agent_id or ""

    one, other = make_token(tmp_path, "a"), make_token(tmp_path, "b")
    async with http_served(tmp_path, who) as server:
        names = []
        for secret in (one, other):
            async with http_client(server.url, secret, mode=mode) as client:
                names.append({each.name for each in (await client.list_tools()).tools})
        async with http_client(server.url, one, mode=mode) as client:
            mine = await client.call_tool("own_who", {})
        async with http_client(server.url, other, mode=mode) as client:
            with pytest.raises(MCPError):
                await client.call_tool("own_who", {})

    assert names == [{"calculate", "get_today_date", "own_who"}, {"get_today_date"}]
    assert said(mine) == {"result": "a"}
    # No tool finds the token, so none can pass it on.
    assert seen == [None]


@pytest.mark.promise("E-129")
async def test_without_a_good_token_there_is_no_service(tmp_path: Path) -> None:
    good = make_token(tmp_path)
    short = make_token(tmp_path, days=1e-9)
    with TokenStore(tmp_path / "state" / "tokens.db") as store:
        revoked, text = store.create("a")
        store.revoke(revoked.id)
    bad = ["", "nonsense", "tcl_", good[:-1], good + "x", short, text]
    async with http_served(tmp_path) as server, httpx2.AsyncClient(timeout=60) as http:
        answers = [await http.post(server.url, json=INITIALIZE, headers=ACCEPTED)]
        for secret in bad:
            headers = bearer(secret) if secret else {**ACCEPTED, "Authorization": "x"}
            answers.append(
                await http.post(server.url, json=INITIALIZE, headers=headers)
            )
        for place in (f"?token={good}", f"?access_token={good}"):
            url = server.url + place
            answers.append(await http.post(url, json=INITIALIZE, headers=ACCEPTED))
        right = await http.post(server.url, json=INITIALIZE, headers=bearer(good))

    assert {answer.status_code for answer in answers} == {401}
    assert all("Bearer" in answer.headers["www-authenticate"] for answer in answers)
    assert right.status_code == 200


@pytest.mark.promise("E-134")
async def test_a_session_is_bound_to_its_token(tmp_path: Path) -> None:
    mine, sister = make_token(tmp_path, "a"), make_token(tmp_path, "a")
    async with http_served(tmp_path) as server, httpx2.AsyncClient(timeout=60) as http:
        session = await opened(http, server, mine)
        ping = {"jsonrpc": "2.0", "id": 5, "method": "ping"}
        codes = []
        for secret, name in (
            (sister, session),
            (mine, session[:-1] + ("1" if session.endswith("0") else "0")),
            (mine, "guessed"),
            (mine, session),
        ):
            headers = {**bearer(secret), "Mcp-Session-Id": name}
            answer = await http.post(server.url, json=ping, headers=headers)
            codes.append(answer.status_code)
        ended = await http.delete(
            server.url, headers={**bearer(mine), "Mcp-Session-Id": session}
        )
        headers = {**bearer(mine), "Mcp-Session-Id": session}
        after = await http.post(server.url, json=ping, headers=headers)

    assert codes == [404, 404, 404, 200]
    assert (ended.status_code, after.status_code) == (200, 404)
    assert len(session) == 32


@pytest.mark.parametrize("mode", MODES)
async def test_sessions_are_runs_of_their_own(tmp_path: Path, mode: Any) -> None:
    @tool(name="own_run")
    async def run(context: ToolContext) -> list[str | None]:
        """Say which run and session it is in."""
        return [context.run_id, context.session]

    one, other = make_token(tmp_path), make_token(tmp_path)
    seen = []
    async with http_served(tmp_path, run) as server:
        for secret in (one, one, other):
            async with http_client(server.url, secret, mode=mode) as client:
                pair = [said(await client.call_tool("own_run", {})) for _ in range(2)]
                assert pair[0] == pair[1]
                seen.append(tuple(pair[0]["result"]))

    # Without sessions in the protocol, a client is its token.
    assert len(set(seen)) == (3 if mode == LEGACY else 2)
    assert all(run == session for run, session in seen)


@pytest.mark.promise("T20")
@pytest.mark.promise("E-128")
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:80"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1"},
    ],
)
async def test_foreign_pages_are_kept_out(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    secret = make_token(tmp_path)
    async with http_served(tmp_path) as server, httpx2.AsyncClient(timeout=60) as http:
        url = server.url
        refused = await http.post(
            url, json=INITIALIZE, headers=bearer(secret) | headers
        )
        probes = [
            await http.get(url.replace("/mcp", path), headers=headers)
            for path in ("/healthz", "/readyz")
        ]
        local = {"Origin": url.removesuffix("/mcp")}
        let_in = await http.post(url, json=INITIALIZE, headers=bearer(secret) | local)

    assert refused.status_code == 403
    # A probe of Kubernetes names the address of its pod; a page learns nothing.
    for_pages = 403 if "Origin" in headers else 200
    assert [probe.status_code for probe in probes] == [for_pages] * 2
    assert let_in.status_code == 200


async def test_names_of_the_server_can_be_added(tmp_path: Path) -> None:
    names = (
        'allowed_hosts = ["tools.example.com"]\n'
        'allowed_origins = ["https://app.example.com"]\n'
    )
    text = CONFIG.replace("[server]\n", f"[server]\n{names}")
    secret = make_token(tmp_path)
    headers = {"Host": "tools.example.com", "Origin": "https://app.example.com"}
    async with (
        http_served(tmp_path, text=text) as server,
        httpx2.AsyncClient(timeout=60) as http,
    ):
        answer = await http.post(
            server.url, json=INITIALIZE, headers=bearer(secret) | headers
        )

    assert answer.status_code == 200


@pytest.mark.promise("T24")
async def test_a_page_of_an_allowed_origin_can_call(tmp_path: Path) -> None:
    page = "https://app.example.com"
    text = CONFIG.replace("[server]\n", f'[server]\nallowed_origins = ["{page}"]\n')
    secret = make_token(tmp_path)
    asks = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,mcp-method,mcp-session-id",
    }
    async with (
        http_served(tmp_path, text=text) as server,
        httpx2.AsyncClient(timeout=60) as http,
    ):
        url = server.url
        preflight = await http.options(url, headers={"Origin": page} | asks)
        foreign = await http.options(
            url, headers={"Origin": "https://evil.example"} | asks
        )
        answer = await http.post(
            url, json=INITIALIZE, headers=bearer(secret) | {"Origin": page}
        )
        refused = await http.post(url, json=INITIALIZE, headers={"Origin": page})

    assert (preflight.status_code, foreign.status_code) == (200, 403)
    assert preflight.headers["Access-Control-Allow-Origin"] == page
    allowed = preflight.headers["Access-Control-Allow-Headers"].lower()
    assert set(asks["Access-Control-Request-Headers"].split(",")) <= {
        each.strip() for each in allowed.split(",")
    }
    assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
    assert "Access-Control-Allow-Credentials" not in preflight.headers
    assert (answer.status_code, refused.status_code) == (200, 401)
    for response in (answer, refused):
        assert response.headers["Access-Control-Allow-Origin"] == page
        assert "Mcp-Session-Id" in response.headers["Access-Control-Expose-Headers"]


@pytest.mark.promise("E-92", "E-132")
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', 400),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}', 400),
        (b'{"jsonrpc":"2.0","id":' + b"9" * 5_000 + b',"method":"ping"}', 400),
        (b"[" * 5_000, 400),
        (b"[" * 100_000, 413),
        (b"[" + json.dumps(INITIALIZE).encode() + b"]", 400),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', 400),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', 400),
        (b" " * 2_000_000, 413),
    ],
)
async def test_what_is_no_request_is_answered_so(
    tmp_path: Path, body: bytes, status: int
) -> None:
    text = CONFIG.replace("[server]\n", "[server]\nmax_body_bytes = 1_000_000\n")
    secret = make_token(tmp_path)
    headers = {**bearer(secret), "Content-Type": "application/json"}
    modern = {**headers, "MCP-Protocol-Version": "2026-07-28"}
    async with (
        http_served(tmp_path, text=text) as server,
        httpx2.AsyncClient(timeout=60) as http,
    ):
        session = await opened(http, server, secret)
        inside = {**headers, "Mcp-Session-Id": session}
        answers = [
            await http.post(server.url, content=body, headers=each)
            for each in (headers, inside, modern)
        ]
        after = await opened(http, server, secret)

    assert {answer.status_code for answer in answers} == {status}
    assert after


@pytest.mark.parametrize("idle_seconds", [1_800, 0.2])
async def test_clients_are_limited_and_leave_by_themselves(
    tmp_path: Path, idle_seconds: float
) -> None:
    limits = f"[server]\nmax_clients = 1\nidle_seconds = {idle_seconds}\n"
    text = CONFIG.replace("[server]\n", limits)
    secret = make_token(tmp_path)
    async with (
        http_served(tmp_path, text=text) as server,
        httpx2.AsyncClient(timeout=60) as http,
    ):
        await opened(http, server, secret)
        second = await http.post(server.url, json=INITIALIZE, headers=bearer(secret))
        later = second
        while later.status_code == 503 and idle_seconds < 1:
            await anyio.sleep(0.02)
            later = await http.post(server.url, json=INITIALIZE, headers=bearer(secret))

    assert later.status_code == (200 if idle_seconds < 1 else 503)
    if idle_seconds > 1:
        data = {"reason": "too_many_sessions", "retry_after": 1.0}
        assert later.json()["error"]["data"] == data
        assert later.headers["retry-after"] == "1"


async def test_health_and_readiness(tmp_path: Path) -> None:
    async with http_served(tmp_path) as server, httpx2.AsyncClient(timeout=60) as http:
        base = server.url.removesuffix("/mcp")
        before = [await http.get(f"{base}/{each}") for each in ("healthz", "readyz")]
        server.server.calls.draining = True
        after = [await http.get(f"{base}/{each}") for each in ("healthz", "readyz")]

    assert [answer.status_code for answer in before] == [200, 200]
    assert [answer.status_code for answer in after] == [200, 503]
    assert after[1].json() == {"status": "stopping"}


@pytest.mark.parametrize("mode", MODES)
async def test_only_a_token_of_a_person_approves(tmp_path: Path, mode: Any) -> None:
    plain = make_token(tmp_path)
    person = make_token(tmp_path, asks_person=True)
    results = []
    async with http_served(tmp_path) as server:
        for secret in (plain, person):
            answer = answering("accept", approve=True)
            async with http_client(
                server.url, secret, mode=mode, elicitation_callback=answer
            ) as client:
                results.append(await client.call_tool("get_today_date", {}))

    assert said(results[0])["reason"] == "approval_unavailable"
    assert "today" in said(results[1])


GOOD = AccessToken(
    token="good",
    client_id="c",
    scopes=["tools"],
    subject="a",
    resource="https://tools.example.com/mcp",
)
KNOWN = {
    "good": GOOD,
    "elsewhere": GOOD.model_copy(update={"resource": "https://other.example.com"}),
    "scopeless": GOOD.model_copy(update={"scopes": []}),
    "nobody": GOOD.model_copy(update={"subject": None}),
    "old": GOOD.model_copy(update={"expires_at": 1}),
}


class Verifier:
    """What knows tokens of another service; its word may be anything."""

    async def verify_token(self, token: str) -> AccessToken | None:
        if token == "crash":
            raise RuntimeError("the database is gone")
        return KNOWN.get(token)


@pytest.mark.promise("E-127")
async def test_tokens_of_an_oauth_server_are_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "a_verifier", sys.modules[__name__])
    auth = """
[auth]
verifier = "a_verifier:Verifier"
issuer = "https://login.example.com"
resource = "https://tools.example.com/mcp"
scopes = ["tools"]
"""
    names = ("good", "elsewhere", "scopeless", "nobody", "old", "crash", "other")
    async with (
        http_served(tmp_path, text=CONFIG + auth) as server,
        httpx2.AsyncClient(timeout=60) as http,
    ):
        codes = {}
        for name in names:
            answer = await http.post(server.url, json=INITIALIZE, headers=bearer(name))
            codes[name] = answer.status_code
        place = server.url.replace("/mcp", "/.well-known/oauth-protected-resource/mcp")
        metadata = (await http.get(place)).json()
        refused = await http.post(server.url, json=INITIALIZE, headers=ACCEPTED)
        async with http_client(server.url, "good") as client:
            result = await client.call_tool("calculate", SUM)

    assert codes.pop("good") == 200
    assert codes.pop("scopeless") == 403
    assert set(codes.values()) == {401}
    assert metadata["resource"] == "https://tools.example.com/mcp"
    assert metadata["authorization_servers"] == ["https://login.example.com/"]
    assert "resource_metadata=" in refused.headers["www-authenticate"]
    assert said(result) == {"result": 42}


async def test_everybody_may_come_only_in_development(tmp_path: Path) -> None:
    text = f"{CONFIG}[auth]\nunauthenticated = true\n"
    with pytest.raises(ConfigError, match=r"auth\.unauthenticated"):
        settings(tmp_path, text)
    text = f'profile = "development"\n{text}'
    async with (
        http_served(tmp_path, text=text) as server,
        http_client(server.url) as client,
    ):
        result = await client.call_tool("calculate", SUM)

    assert said(result) == {"result": 42}


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('verifier = "a:b"', "a verifier needs issuer and resource"),
        ('issuer = "https://a.example"', "belong to a verifier"),
        ('issuer = "https://user:word@a.example/"', "auth.issuer"),
        ('verifier = "no path"', "write package.module:name"),
        ("anonymous = true", "auth.anonymous: there is no such key"),
    ],
)
def test_a_table_that_says_too_little_is_refused(
    tmp_path: Path, table: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        settings(tmp_path, f"{CONFIG}[auth]\n{table}\n")


@pytest.mark.parametrize("address", ["", "8931", "127.0.0.1:", "x:99999", "[::1]"])
def test_an_address_is_host_and_port(address: str) -> None:
    with pytest.raises(ConfigError, match="is no address"):
        listen(address)


async def test_answers_do_not_wait_for_acknowledgements(tmp_path: Path) -> None:
    text = f'profile = "development"\n{CONFIG}[auth]\nunauthenticated = true\n'
    async with http_served(tmp_path, text=text) as server:
        # Connections have the options of the socket that they come in by.
        listening = server._socket
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_taken_address_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="cannot listen"):
            listen(f"127.0.0.1:{port}")
