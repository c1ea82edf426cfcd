"""Ports of sandboxes over HTTP, and sandboxes that are paused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from toolcell.host.http.agent_shares import AgentShares

from .served_sandboxes import Sandbox, approve_next, served

pytestmark = pytest.mark.anyio

SERVER = """
import http.server

class Handler(http.server.BaseHTTPRequestHandler):
    def do_DELETE(self):
        self.do_POST()

    def do_GET(self):
        self.do_POST()

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        host = self.headers["host"]
        found = [self.command, self.path, host, body.decode(), str(self.headers)]
        self.send_response(201)
        self.send_header("x-own", "1")
        self.end_headers()
        self.wfile.write("|".join(found).encode())

http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


async def start_server(sandbox: Sandbox) -> None:
    """Start a server in a sandbox, and leave it to itself."""
    await sandbox.write("server.py", SERVER.encode())
    await sandbox.start("python3", "server.py")
    ready = "while ! (: < /dev/tcp/127.0.0.1/8000); do sleep 0.05; done"
    await sandbox.command(f"{ready} 2>/dev/null")


async def test_what_a_program_answers_has_no_place_of_what_ends_things(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[bool] = []
    turn = AgentShares.turn

    async def noted(shares: AgentShares, agent_id: str, **kind: Any) -> bool:
        ends.append(kind["ends"])
        return await turn(shares, agent_id, **kind)

    monkeypatch.setattr(AgentShares, "turn", noted)
    signal = "process.Process/SendSignal"
    async with served(tmp_path) as service:
        sandbox = await service.create()
        await sandbox.unary(signal)
        token = {"e2b-traffic-access-token": sandbox.access}
        path = f"/sandboxes/{sandbox.id}/ports/8000/{signal}"
        await service.http.delete(path, headers=token)
        await service.http.delete(f"/sandboxes/{sandbox.id}", headers=service.key())

    assert ends == [False, True, False, True]


@pytest.mark.promise("S12")
@pytest.mark.promise("R36")
async def test_requests_reach_a_server_in_a_sandbox(tmp_path: Path) -> None:
    async with served(tmp_path, 'domain = "box.test"') as service:
        sandbox = await service.create()
        await start_server(sandbox)
        host = {"host": f"8000-{sandbox.id}.box.test"}
        token = {"e2b-traffic-access-token": sandbox.access}
        by_host = await service.http.post(
            "/a?b=c", content=b"hi", headers={**host, **token}
        )
        by_path = await service.http.post(
            f"/sandboxes/{sandbox.id}/ports/8000/a", content=b"hi", headers=token
        )
        none = await service.http.post("/a", content=b"hi", headers=host)
        closed = await service.http.post(
            f"/sandboxes/{sandbox.id}/ports/8001/", headers=token
        )
        await service.http.delete(f"/sandboxes/{sandbox.id}", headers=service.key())
        ended = await service.http.get("/a", headers=host)

    method, path, name, body, headers = by_host.text.split("|")
    assert (by_host.status_code, by_host.headers["x-own"]) == (201, "1")
    assert (method, path, name, body) == ("POST", "/a?b=c", "localhost:8000", "hi")
    assert sandbox.access not in headers
    assert by_path.text.startswith("POST|/a|")
    assert "sandbox" in by_path.headers["content-security-policy"]
    assert (none.status_code, ended.status_code) == (403, 502)
    assert ended.json()["sandboxId"] == sandbox.id
    assert closed.status_code == 502
    assert "port is not open" in closed.json()["message"]


ASKS = """
[[policies]]
agent_id = "a"
allow = ["sandbox.create", "sandbox.command", "sandbox.write"]
ask = ["sandbox.port"]
[[policies]]
agent_id = "b"
"""


@pytest.mark.promise("R12", "R33")
async def test_a_server_gets_what_was_approved_as_it_was_written(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, "approval_seconds = 60", policies=ASKS) as service:
        sandbox = await service.create()
        await start_server(sandbox)
        url = f"{service.url}/sandboxes/{sandbox.id}/ports/8000"
        token = {"e2b-traffic-access-token": sandbox.access}
        answers: list[str] = []

        async def send(method: str, target: str) -> None:
            raw = httpx2.URL(url).copy_with(raw_path=target.encode())
            answer = await service.http.request(method, raw, headers=token)
            answers.append(f"{answer.status_code}|{answer.text}")

        async def approved(asked: str, target: str, **edited: str) -> None:
            target = f"/sandboxes/{sandbox.id}/ports/8000{target}"
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send, asked, target)
                await approve_next(service, **edited)

        await approved("DELETE", "/users/7", method="GET", path="/status", query="a=1")
        for path in ("/a%20b", "/caf%C3%A9", "/100%25", "/a%2Fb", "/a%09b?id=%207"):
            await approved("GET", path)
        await send("GET", f"/sandboxes/{sandbox.id}/ports/8000/%2e%2e/%61dmin")
        records = service.host.executor.records.query(tool_name="sandbox.port")

    assert [each.split("|")[:3] for each in answers[:-1]] == [
        ["201", "GET", "/status?a=1"],
        *(
            ["201", "GET", path]
            for path in ("/a%20b", "/caf%C3%A9", "/100%25", "/a%2Fb", "/a%09b?id=%207")
        ),
    ]
    assert answers[-1].startswith("400|")
    shown = {
        (record.arguments["path"], record.arguments["query"]) for record in records
    }
    assert {("/status", "a=1"), ("/a%09b", "id=%207")} <= shown


async def test_a_paused_sandbox_goes_on_where_it_was(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create(timeout=600)
        await sandbox.code(code="x = 41")
        one = f"/sandboxes/{sandbox.id}"
        paused = await service.http.post(f"{one}/pause", headers=service.key())
        again = await service.http.post(f"{one}/pause", headers=service.key())
        listed = await service.http.get(
            "/v2/sandboxes", params={"state": "paused"}, headers=service.key()
        )
        away = await service.http.get("/health", headers=sandbox.headers)
        with anyio.fail_after(60):
            back = await service.http.post(
                f"/v2{one}/connect", json={"timeout": 600}, headers=service.key()
            )
        value = await sandbox.code(code="x + 1")

    assert (paused.status_code, again.status_code) == (204, 409)
    assert [each["sandboxID"] for each in listed.json()] == [sandbox.id]
    assert away.status_code == 502
    assert back.status_code == 200
    assert {"type": "result", "text": "42", "is_main_result": True} in value
