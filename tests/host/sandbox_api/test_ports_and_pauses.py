"""Ports of sandboxes over HTTP, and sandboxes that are paused."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from .served_sandboxes import Sandbox, served

pytestmark = pytest.mark.anyio

SERVER = """
import http.server

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        found = [self.path, self.headers["host"], body.decode(), str(self.headers)]
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

    path, name, body, headers = by_host.text.split("|")
    assert (by_host.status_code, by_host.headers["x-own"]) == (201, "1")
    assert (path, name, body) == ("/a?b=c", "localhost:8000", "hi")
    assert sandbox.access not in headers
    assert by_path.text.startswith("/a|")
    assert "sandbox" in by_path.headers["content-security-policy"]
    assert none.status_code == 401
    assert closed.status_code == 502
    assert "port is not open" in closed.json()["message"]


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
