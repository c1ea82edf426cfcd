"""Connections from the host to servers inside a cell; on every backend."""

from __future__ import annotations

import hashlib

import anyio
import pytest
from anyio.abc import ByteStream

from toolcell.core import CellLostError, InvalidInputError
from toolcell.sandbox import SandboxManager, SandboxSession

from ...conftest import BackendRow

pytestmark = pytest.mark.anyio

SERVER = """
import socket, sys, threading
where, port = sys.argv[1], int(sys.argv[2])
family = socket.AF_INET6 if ':' in where else socket.AF_INET
door = socket.create_server((where, port), family=family, backlog=256)
def serve(peer):
    with peer:
        {body}
print('listening', flush=True)
while True:
    threading.Thread(target=serve, args=door.accept()[:1], daemon=True).start()
"""
ECHO = "while data := peer.recv(65536): peer.sendall(data)"
WHOLE = "b''.join(iter(lambda: peer.recv(65536), b''))"


async def serve(
    session: SandboxSession, body: str, port: int, at: str = "127.0.0.1"
) -> None:
    code = SERVER.replace("{body}", body.replace("\n", "\n        "))
    server = await session.exec(["python3", "-c", code, at, str(port)], background=True)
    async for _, data in server.output():
        assert data == b"listening\n", data
        return
    raise AssertionError((await server.wait()).stderr)


async def read_all(stream: ByteStream) -> bytes:
    data = b""
    with anyio.fail_after(30):
        while True:
            try:
                data += await stream.receive()
            except anyio.EndOfStream:
                return data


async def test_a_server_in_the_cell_is_reached(session: SandboxSession) -> None:
    await serve(session, ECHO, 8000, "0.0.0.0")
    async with await session.connect(8000) as stream:
        await stream.send(b"hello")
        assert await stream.receive(2) + await stream.receive() == b"hello"
        await stream.send_eof()
        assert await read_all(stream) == b""
        with pytest.raises(anyio.ClosedResourceError):
            await stream.send(b"late")
    with pytest.raises(anyio.ClosedResourceError):
        await stream.receive()


async def test_each_direction_ends_by_itself(session: SandboxSession) -> None:
    await serve(session, f"data = {WHOLE}; peer.sendall(data[::-1])", 8000)
    async with await session.connect(8000) as stream:
        await stream.send(b"abc")
        await stream.send_eof()
        assert await read_all(stream) == b"cba"

    await serve(
        session,
        "import hashlib; peer.sendall(b'bye'); peer.shutdown(socket.SHUT_WR);"
        f"open('got', 'wb').write({WHOLE}); open('done', 'w')",
        8001,
    )
    async with await session.connect(8001) as stream:
        assert await read_all(stream) == b"bye"
        await stream.send(b"still heard")
    result = await (
        await session.exec("until test -e done; do sleep 0.01; done")
    ).wait()
    assert result.ok and await session.read_file("got") == b"still heard"


async def test_large_streams_arrive_whole_in_both_directions(
    session: SandboxSession,
) -> None:
    await serve(session, ECHO, 8000)
    data = bytes(range(256)) * 32_768
    async with (
        await session.connect(8000) as stream,
        anyio.create_task_group() as tasks,
    ):

        async def send() -> None:
            await stream.send(data)
            await stream.send_eof()

        tasks.start_soon(send)
        echoed = await read_all(stream)
    assert hashlib.sha256(echoed).digest() == hashlib.sha256(data).digest()


async def test_connections_run_beside_each_other_and_beside_a_run(
    session: SandboxSession,
) -> None:
    await serve(session, ECHO, 8000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.run, "import time; time.sleep(600)")
        async with (
            await session.connect(8000) as one,
            await session.connect(8000) as two,
        ):
            for stream, data in ((one, b"1"), (two, b"2"), (one, b"3")):
                await stream.send(data)
                assert await stream.receive() == data
        await session.interrupt()
    assert (await session.run("1 + 1")).value == 2


async def test_a_server_at_the_second_loopback_address(session: SandboxSession) -> None:
    try:
        await serve(session, ECHO, 8000, "::1")
    except AssertionError as error:
        if "Cannot assign" in str(error) or "not supported" in str(error):
            pytest.skip("this cell has no IPv6")
        raise
    async with await session.connect(8000) as stream:
        await stream.send(b"six")
        assert await stream.receive() == b"six"


async def test_a_server_that_nobody_reads_waits(session: SandboxSession) -> None:
    body = """for n in range(200):
    peer.sendall(bytes(65536))
    open('sent', 'w').write(str(n))"""
    await serve(session, body, 8000)
    async with await session.connect(8000) as stream:
        seen = -1
        while True:
            await anyio.sleep(0.3)
            said = await (await session.exec("cat sent")).wait()
            if int(said.stdout or 0) == seen:
                break
            seen = int(said.stdout or 0)
        assert seen < 199, "everything was sent, and nobody had read"
        assert len(await read_all(stream)) == 200 * 65536


async def test_a_server_that_does_not_read_holds_up_who_sends(
    session: SandboxSession,
) -> None:
    await serve(session, "import time; time.sleep(600)", 8000)
    async with await session.connect(8000) as stream:
        sent = 0
        with anyio.move_on_after(1):
            for _ in range(1000):
                await stream.send(bytes(65536))
                sent += 65536
        assert 0 < sent < 32 << 20
        assert (await session.run("1 + 1")).value == 2


async def test_a_server_that_never_stops_is_left(session: SandboxSession) -> None:
    body = """try:
    while True: peer.sendall(bytes(65536))
except OSError: open('over', 'w')"""
    await serve(session, body, 8000)
    async with await session.connect(8000) as stream:
        await stream.receive()
    done = await session.exec(
        "until test -e over; do sleep 0.01; done", timeout_seconds=20
    )
    assert (await done.wait()).ok


async def test_nothing_listens_there(session: SandboxSession) -> None:
    with pytest.raises(InvalidInputError, match="port 8000") as caught:
        await session.connect(8000)
    assert caught.value.details["reason"] == "missing"
    assert (await session.run("1 + 1")).value == 2


@pytest.mark.parametrize("port", [0, -1, 65_536, 10**20, True, "80", None])
async def test_what_is_no_port(session: SandboxSession, port: int) -> None:
    with pytest.raises(InvalidInputError, match="no port"):
        await session.connect(port)


async def test_a_server_that_hangs_up(session: SandboxSession) -> None:
    body = (
        "import struct; peer.recv(1); peer.setsockopt(socket.SOL_SOCKET,"
        " socket.SO_LINGER, struct.pack('ii', 1, 0))"
    )
    await serve(session, body, 8000)
    async with await session.connect(8000) as stream:
        await stream.send(b"x")
        with pytest.raises(anyio.BrokenResourceError), anyio.fail_after(60):
            while True:
                await stream.receive()
    assert (await session.run("1 + 1")).value == 2


async def test_the_end_of_the_session_breaks_connections(backend: BackendRow) -> None:
    async with SandboxManager(backend.config()) as manager:
        async with manager.session() as session:
            await serve(session, ECHO, 8000)
            stream = await session.connect(8000)
        with pytest.raises(anyio.BrokenResourceError), anyio.fail_after(60):
            await stream.receive()
        with pytest.raises(CellLostError):
            await session.connect(8000)
        await stream.aclose()


MANY = """
import asyncio
async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()
async def main():
    server = await asyncio.start_server(echo, '127.0.0.1', 8000, backlog=256)
    print('listening', flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


async def test_too_many_connections_are_refused(session: SandboxSession) -> None:
    server = await session.exec(["python3", "-c", MANY])
    assert await anext(server.output()) == ("stdout", b"listening\n")
    streams = [await session.connect(8000) for _ in range(128)]
    with pytest.raises(InvalidInputError) as caught:
        await session.connect(8000)
    assert caught.value.details["reason"] == "too_many"
    for stream in streams:
        await stream.aclose()
    async with await session.connect(8000) as stream:
        await stream.send(b"free again")
        assert await stream.receive() == b"free again"
