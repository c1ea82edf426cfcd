"""Servers in one loop, one after another."""

from __future__ import annotations

import contextlib
import socket

import anyio
import httpx2
import pytest
from starlette.responses import PlainTextResponse

from toolcell.host.http import serving as http_serving
from toolcell.host.http.serving import listen, serving

from ...support.web.loop_steps import SECONDS, TRIES, steps

pytestmark = pytest.mark.anyio


async def test_a_server_that_was_cancelled_leaves_nothing_to_the_next() -> None:
    numbers = []
    for _ in range(2):
        with listen("127.0.0.1:0") as listening, anyio.CancelScope() as scope:
            numbers.append(listening.fileno())
            async with (
                serving(PlainTextResponse("here"), listening, 8) as url,
                httpx2.AsyncClient(timeout=60) as http,
            ):
                with anyio.fail_after(60):
                    answer = await http.get(url)
                scope.cancel()

        assert answer.text == "here"
    # The loop knows sockets by their numbers.
    assert numbers[0] == numbers[1]


REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def test_a_server_keeps_connections_longer_than_its_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E2B's do for 300 seconds; a request would meet the end of its connection."""
    assert http_serving.IDLE_SECONDS > 300
    with listen("127.0.0.1:0") as listening:
        port = listening.getsockname()[1]
        async with serving(PlainTextResponse("here"), listening, 8):
            with anyio.fail_after(60):
                idle = await anyio.connect_tcp("127.0.0.1", port)
                for _ in range(2):
                    await idle.send(REQUEST)
                    answer = b""
                    while not answer.endswith(b"here"):
                        answer += await idle.receive()
                    monkeypatch.setattr(http_serving, "HEAD_SECONDS", 0.2)
                    silent = await anyio.connect_tcp("127.0.0.1", port)
                    # Its time for a head began after the answer.
                    with contextlib.suppress(anyio.EndOfStream):
                        await silent.receive()
                    await silent.aclose()
                await idle.send(REQUEST[:4])
                with contextlib.suppress(anyio.EndOfStream):
                    await idle.receive()
                await idle.aclose()


ROOM = 1 << 20
CHUNKS = (
    b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"1\r\na\r\n" * 30_000
)
"""What anybody may send, all of it there before the server reads."""


@pytest.mark.promise("R66")
async def test_many_small_chunks_do_not_hold_the_loop() -> None:
    longest: list[float] = []
    with listen("127.0.0.1:0") as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ROOM)
        async with serving(PlainTextResponse("here"), listening, 8):
            while len(longest) < TRIES and SECONDS < min(longest, default=1.0):
                with socket.create_connection(listening.getsockname()) as client:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
                    client.setblocking(False)
                    with steps() as taken:
                        assert client.send(CHUNKS) == len(CHUNKS)
                        with anyio.fail_after(60):
                            await anyio.wait_readable(client)
                        assert client.recv(100).startswith(b"HTTP/1.1 200")
                longest.append(max(taken))
    assert min(longest) < SECONDS, longest
