"""WebSockets to servers in sandboxes: a real client, a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from toolcell.host.http import serving as http_serving
from toolcell.host.http.tokens import open_tokens

from ...support.web.packed_websockets import packed_websockets
from .served_sandboxes import Sandbox, Service, resident_kb, served

pytestmark = pytest.mark.anyio

SERVER = """
import time
from websockets.sync.server import serve

def answer(socket):
    for message in socket:
        if message == "close":
            return socket.close(4000, "bye")
        if message == "later":
            time.sleep(2.5)
        if message == "large":
            message = bytes(5000)
        if message == "head":
            message = f"{socket.request.path}|{socket.request.headers}"
        if message == "flood":
            while True:
                socket.send(bytes(1_000_000))
        if message[:5] == "quiet":
            continue
        socket.send(message)

def check(connection, request):
    if request.path == "/no":
        return connection.respond(403, "not here")

def choose(connection, offered):
    return "chat" if "chat" in offered else None

options = {"process_request": check, "select_subprotocol": choose}
serve(answer, "127.0.0.1", 8000, subprotocols=["chat"], **options).serve_forever()
"""


async def start_server(sandbox: Sandbox) -> None:
    await sandbox.write("websockets.zip", packed_websockets())
    await sandbox.write("server.py", SERVER.encode())
    variables = {"PYTHONPATH": "websockets.zip"}
    await sandbox.start("python3", "server.py", envs=variables)
    ready = "while ! (: < /dev/tcp/127.0.0.1/8000); do sleep 0.05; done"
    await sandbox.command(f"{ready} 2>/dev/null")


@asynccontextmanager
async def with_server(
    folder: Path, settings: str = ""
) -> AsyncIterator[tuple[Service, Sandbox]]:
    async with served(folder, settings) as service:
        sandbox = await service.create()
        await start_server(sandbox)
        yield service, sandbox


def opened(
    service: Service, sandbox: Sandbox, path: str = "/", access: str = "", **more: Any
) -> connect:
    """Open a WebSocket to the server in a sandbox."""
    return connect(
        f"ws{service.url[4:]}{path}",
        additional_headers={
            "e2b-sandbox-id": sandbox.id,
            "e2b-sandbox-port": str(more.pop("port", 8000)),
            "e2b-traffic-access-token": access or sandbox.access,
        },
        open_timeout=60,
        **more,
    )


async def echoed(socket: ClientConnection, message: str | bytes) -> str | bytes:
    await socket.send(message)
    return await socket.recv()


async def test_messages_go_both_ways(tmp_path: Path) -> None:
    async with (
        with_server(tmp_path) as (service, sandbox),
        opened(service, sandbox, "/a?b=c", subprotocols=["x", "chat"]) as socket,
    ):
        assert await echoed(socket, "höi") == "höi"
        assert await echoed(socket, b"\0\xff") == b"\0\xff"
        assert await echoed(socket, "x" * 300_000) == "x" * 300_000
        await socket.send(["a", "b"])
        assert await socket.recv() == "ab"
        head = str(await echoed(socket, "head"))
        assert socket.subprotocol == "chat"
        await socket.send("close")
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()

    assert head.startswith("/a?b=c|")
    assert "Host: localhost:8000" in head
    assert sandbox.access not in head
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4000, "bye")


async def test_a_socket_outlives_the_time_for_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_server(tmp_path) as (service, sandbox):
        monkeypatch.setattr(http_serving, "HEAD_SECONDS", 2.0)
        async with opened(service, sandbox) as socket:
            assert await echoed(socket, "later") == "later"


async def test_what_opens_no_socket_is_answered(tmp_path: Path) -> None:
    async with with_server(tmp_path) as (service, sandbox):
        other = await service.create("b")
        refused: list[tuple[dict[str, Any], int]] = [
            ({"path": "/no"}, 403),
            ({"port": 8001}, 502),
            ({"port": 49983}, 501),
            ({"access": other.access}, 403),
        ]
        for options, status in refused:
            with pytest.raises(InvalidStatus) as found:
                async with opened(service, sandbox, **options):
                    pass
            assert found.value.response.status_code == status, options
            body = found.value.response.body
            assert body is not None
            assert (b"not here" in body) == ("path" in options)


async def test_large_messages_close_a_socket(tmp_path: Path) -> None:
    async with with_server(tmp_path, "max_body_bytes = 4096") as (service, sandbox):
        for message in ("large", "quiet" * 1000):
            async with opened(service, sandbox) as socket:
                assert await echoed(socket, "x" * 4000) == "x" * 4000
                with pytest.raises(ConnectionClosed) as closed:
                    await echoed(socket, message)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009


async def test_a_client_that_never_reads_holds_up_its_socket_alone(
    tmp_path: Path,
) -> None:
    async with (
        with_server(tmp_path) as (service, sandbox),
        opened(service, sandbox, max_queue=1) as socket,
    ):
        before = resident_kb()
        await socket.send("flood")
        for _ in range(5):
            output, _ = await sandbox.command("sleep 0.1; echo fine")
            assert output == b"fine\n"
        grown = resident_kb() - before

    assert grown < 64 * 1024


async def test_a_killed_sandbox_closes_its_sockets(tmp_path: Path) -> None:
    async with (
        with_server(tmp_path) as (service, sandbox),
        opened(service, sandbox) as socket,
    ):
        await service.http.delete(f"/sandboxes/{sandbox.id}", headers=service.key())
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()

    assert closed.value.rcvd is not None
    assert closed.value.rcvd.reason == "The sandbox was not found"


@pytest.mark.promise("R67")
async def test_a_socket_ends_with_its_token(tmp_path: Path) -> None:
    assert http_serving.LOOK_SECONDS <= 0.5
    async with (
        with_server(tmp_path) as (service, sandbox),
        opened(service, sandbox) as socket,
    ):
        assert await echoed(socket, "a") == "a"
        with open_tokens(service.host.config) as tokens:
            tokens.revoke(service.keys["a"][4:20])
        with anyio.fail_after(60), pytest.raises(ConnectionClosed):
            await socket.recv()
