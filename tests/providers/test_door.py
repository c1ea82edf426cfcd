"""A port of this machine leads to a server in a cell, as far as the guard allows."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator

import pytest

from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.providers.cells.door import open_door
from toolcell.providers.cells.thread_session import ThreadSession
from toolcell.sandbox import SandboxConfig

from ..conftest import SUBPROCESS

pytestmark = pytest.mark.anyio

PORT = 8000
POLICY = AgentPolicy(
    agent_id="sandbox",
    allow=["exec", {"tools": ["connect"], "when": {"port": {"equals": PORT}}}],
)
ECHO = f"""
import socketserver, threading
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(self.rfile.read().upper())
other = socketserver.TCPServer(("127.0.0.1", {PORT + 1}), Echo)
threading.Thread(target=other.serve_forever).start()
server = socketserver.TCPServer(("127.0.0.1", {PORT}), Echo)
print("ready", flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def thread() -> Iterator[ThreadSession]:
    config: SandboxConfig = SUBPROCESS.config()
    session = ThreadSession(config, guard=ActionGuard([POLICY]))
    guarded = session.guarded
    process = session.call(guarded.spawn, ["python3", "-c", ECHO])

    async def ready() -> bytes:
        async for _, piece in process.output():
            return piece
        raise AssertionError("the server did not start")

    assert session.call(ready) == b"ready\n"
    yield session
    session.close()


async def said(local: int) -> bytes:
    """Say something at a port of this machine; return the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", local)
    try:
        writer.write(b"hello")
        writer.write_eof()
        return await reader.read()
    except OSError as error:
        # The other side may be gone before the end is told.
        assert error.errno in (errno.ECONNRESET, errno.ENOTCONN, errno.EPIPE)
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("port", "answer"), [(PORT, b"HELLO"), (PORT + 1, b"")], ids=["allowed", "refused"]
)
async def test_a_door_leads_as_far_as_the_guard_allows(
    thread: ThreadSession, port: int, answer: bytes
) -> None:
    local = await open_door(thread, port)

    assert await said(local) == answer


async def test_a_door_is_closed_with_its_session() -> None:
    config: SandboxConfig = SUBPROCESS.config()
    session = ThreadSession(config)
    local = await open_door(session, PORT)
    session.close()

    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", local)
